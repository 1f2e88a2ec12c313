"""Reads weight files of Intel's Caffe, in which a BatchNorm and the Scale that follows it are one layer of five
blobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from engine import proto
from engine.errors import WeightsError

MERGED = ("mean sum", "variance sum", "factor", "scale", "shift")
STATISTICS = 3  # the first three of them are BatchNorm's own


def keeps_scale(param: proto.BatchNormParameter) -> bool:
    """Returns whether a BatchNorm itself has scale and shift. In NVIDIA's Caffe it does with `scale_bias`, or with a
    filler of either. In Intel's it may have a bias_filler without that, but beside a `filler`, which NVIDIA's does not
    know."""
    shift = param.HasField("bias_filler") and not param.HasField("filler")
    return param.scale_bias or param.HasField("scale_filler") or shift


def scale_behind(layers: Sequence[proto.LayerParameter], index: int) -> proto.LayerParameter | None:
    """Returns the next layer that reads the first top of layers[index], if it is a Scale with parameters of its own,
    else None. layers: those of one phase, in order."""
    for top in layers[index].top[:1]:
        reader = next((each for each in layers[index + 1 :] if top in each.bottom), None)
        if reader is not None and reader.type == "Scale" and len(reader.bottom) == 1:
            return reader
    return None


def separated(
    layers: Sequence[proto.LayerParameter], blobs: Mapping[str, Sequence[np.ndarray | None]], source: str
) -> dict[str, Sequence[np.ndarray | None]]:
    """Returns blobs by layer name, where the scale and shift of merged layers belong to the Scale that reads the
    BatchNorm.

    Blobs of layers that the net does not have stay as they are. Raises WeightsError if there is no such Scale, or if
    the file has blobs of that Scale, too.

    Args:
        layers: those of the net in its phase.
        blobs: as the file has them.
        source: the file, for errors.
    """
    result = dict(blobs)
    for index, layer in enumerate(layers):
        if layer.type != "BatchNorm" or keeps_scale(layer.batch_norm_param):
            continue
        if len(blobs.get(layer.name, ())) != len(MERGED):
            continue
        scale = scale_behind(layers, index)
        if scale is None:
            raise WeightsError(
                f"layer '{layer.name}': the file has scale and shift in it, as Intel's Caffe does; expected a Scale "
                'with bias_term after it in the net to take them, or engine: "MKLDNN" of the net, got neither',
                source,
            )
        if scale.name in blobs:
            raise WeightsError(
                f"layer '{layer.name}': the file has scale and shift in it, and in layer '{scale.name}' again", source
            )
        result[layer.name] = blobs[layer.name][:STATISTICS]
        result[scale.name] = blobs[layer.name][STATISTICS:]
    return result
