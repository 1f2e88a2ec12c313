"""Data layers: their sources, the order of samples, transforms and prefetching."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.data.data_source import DataSource
    from engine.data.reader import Shape
    from engine.data.staging import CopyShare
    from engine.proto import LayerParameter


def open_data(
    layer_param: LayerParameter,
    phase: int,
    seed: int = 1,
    where: str | None = None,
    skip_bad_images: bool = False,
    rank: int = 0,
    ranks: int = 1,
    share: CopyShare | None = None,
) -> DataSource:
    """Opens the source of a data layer and its transforms.

    where: "file:line:column" of the layer, for messages.
    rank, ranks: replace %# and %* in the source's path. A path with %# is a source of this rank alone, and is not
        divided among the ranks.
    share: the ranks that share a copy of the source on this host; None: the source is not copied, whatever the layer
        says.

    Raises ConfigError for parameters that cannot be used, DataError for a source that cannot be read.
    """
    from engine.data.data_source import DataSource
    from engine.data.reader import Request
    from engine.data.registry import find_reader

    request = Request(phase, seed, where, skip_bad_images, rank, ranks, share)
    return DataSource(find_reader(layer_param.type, where)(layer_param, request), layer_param.name, request)


def batch_size_of(layer_param: LayerParameter, where: str | None = None) -> int:
    """Returns a data layer's batch_size. Raises ConfigError for a layer without one, or of a type that is no data
    layer's."""
    from engine.data.registry import find_reader

    return find_reader(layer_param.type, where).batch_size(layer_param, where)


def source_of(layer_param: LayerParameter) -> str:
    """Returns the path that a data layer reads; "" if it reads none."""
    from engine.data.registry import find_reader

    return find_reader(layer_param.type).source_of(layer_param)


def set_batch_size(layer_param: LayerParameter, size: int) -> None:
    """Sets the batch_size of a data layer that has one: see batch_size_of()."""
    from engine.data.registry import find_reader

    find_reader(layer_param.type).set_batch_size(layer_param, size)


def shapes_without_data(layer_param: LayerParameter, where: str | None = None) -> tuple[Shape, ...]:
    """Returns the shapes of one item's arrays, one for each top, by the layer's parameters alone: `engine check` asks
    for them if the source is missing. Raises ConfigError if the parameters do not tell."""
    from engine.data.registry import find_reader

    return find_reader(layer_param.type, where).shapes_without_data(layer_param, where)
