"""The Data layer's side of the world: sources of Datums, their order, their transforms, and batches ahead of time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.errors import ConfigError

if TYPE_CHECKING:
    from engine.data.data_source import DataSource
    from engine.proto import LayerParameter


def open_data(
    layer_param: LayerParameter,
    phase: int,
    seed: int = 1,
    where: str | None = None,
    skip_bad_images: bool = False,
    rank: int = 0,
    ranks: int = 1,
) -> DataSource:
    """Opens the source of a Data layer and its transforms.

    where: "file:line:column" of the layer, for messages. rank and ranks replace %# and %* in the source's path; a
    path with %# is the rank's own part of the data and is not divided again.
    Raises ConfigError for parameters that cannot be used, DataError for a source that cannot be read.
    """
    from engine.data.data_source import DataSource
    from engine.data.registry import find_source
    from engine.data.transform import Transformer

    param = layer_param.data_param
    if not param.source:
        raise ConfigError("data_param.source is missing", where)
    # Caffe's default is LEVELDB, which nobody means by leaving the field out.
    backend = param.DB.Name(param.backend) if param.HasField("backend") else "LMDB"
    transformer = Transformer(layer_param.transform_param, phase, where)
    path = param.source.replace("%#", str(rank)).replace("%*", str(ranks))
    source = find_source(backend, where)(path, where, param.shuffle)
    return DataSource(source, transformer, param, phase, seed, where, skip_bad_images)


def shape_without_data(layer_param: LayerParameter, where: str | None = None) -> tuple[int, int, int]:
    """(c, h, w) that a Data layer has by its parameters alone, for `engine check` where the source is missing.

    From mean_file, if it is there; else the size from the crop or a resize_param, and the channels from force_gray and
    the number of mean values, 3 if nothing is said. Raises ConfigError where the size is not said.
    """
    import os

    from engine.data.decode import GRAY
    from engine.data.mean import read_mean
    from engine.data.transform import crop_shape, forced_color

    param = layer_param.transform_param
    crop_h, crop_w = crop_shape(param, where)
    if param.mean_file and os.path.isfile(param.mean_file):
        channels, height, width = read_mean(param.mean_file, where).shape
        return channels, crop_h or height, crop_w or width
    height, width = crop_h or param.resize_param.height, crop_w or param.resize_param.width
    if not (height and width):
        raise ConfigError(
            f"the size of the images is unknown: source {layer_param.data_param.source} is not there, and "
            "transform_param has no crop_size",
            where,
        )
    return 1 if forced_color(param, where) == GRAY else max(len(param.mean_value), 3), height, width
