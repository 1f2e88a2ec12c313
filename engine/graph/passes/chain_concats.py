"""Chains Concats that append to each other (DenseNet's): they write into one blob, of which every top is a prefix.

Without it a dense block of L layers copies its first bottom L times in forward, and again in backward, where Splits add
the gradients of the next layer to those of all later ones. That is most of such a block's memory traffic. In a chain
every bottom is copied once, and gradients are added in place.
"""

from __future__ import annotations

from itertools import pairwise
from typing import cast

from engine.graph.graph import Graph
from engine.layers.base import Blob, Layer
from engine.layers.batch_norm import BatchNorm
from engine.layers.concat import Concat
from engine.layers.convolution import Convolution
from engine.layers.pooling import Pooling
from engine.layers.split import Split


def chain_concats(graph: Graph) -> None:
    """Chains the Concats of a graph; the last pass. A top may be a prefix of a larger blob if only the next Concat and
    BatchNorms read it: the kernels of the latter are our own, and can read a prefix. Results stay the same, bit by
    bit."""
    readers = graph.readers()
    follower = {layer: found for layer in graph.layers if (found := _next(layer, readers))}
    continued = {concat for _, concat in follower.values()}
    for first in graph.layers:
        if first not in follower or first in continued:
            continue
        chain = [cast(Concat, first)]
        while chain[-1] in follower:
            chain.append(follower[chain[-1]][1])
        if not _owns_its_gradient(chain[-1].tops[0], readers):
            chain.pop()
        if len(chain) == 1:
            continue
        for each, after in pairwise(chain):
            if split := follower[each][0]:
                split.kept = [blob in after.bottoms for blob in split.tops].index(True)
        sizes = [blob.shape[1] for i, each in enumerate(chain) for blob in each.bottoms[i > 0 :]]
        for each in chain:
            each.sizes, each.continues = sizes, each is not first


def _next(layer: Layer, readers: dict[Blob, list[Layer]]) -> tuple[Split | None, Concat] | None:
    """Returns the Concat that appends to this one's top, and the Split between them, if there is one; None if a chain
    cannot go on from this layer."""
    if not _may_chain(layer) or any(layer.loss_weights):
        return None
    top, split = layer.tops[0], None
    tops = [top]
    if [type(each) for each in readers.get(top, [])] == [Split]:
        split = cast(Split, readers[top][0])
        tops = split.tops
    if any(blob.needs_gradient != top.needs_gradient or blob.gradient_is_set for blob in tops):
        return None
    reading = [(blob, each) for blob in tops for each in readers.get(blob, [])]
    concats = [each for blob, each in reading if _may_chain(each) and blob is each.bottoms[0]]
    if len(concats) != 1 or concats[0].bottoms.count(concats[0].bottoms[0]) != 1:
        return None
    concat = cast(Concat, concats[0])
    others = [each for blob, each in reading if each is not concat and _reads_prefix(each, blob)]
    if len(others) != len(tops) - 1 or concat.tops[0].needs_gradient != top.needs_gradient:
        return None
    return split, concat


def _owns_its_gradient(top: Blob, readers: dict[Blob, list[Layer]]) -> bool:
    """Tells whether the gradient of a chain's last top has memory of its own, to which the chain's Splits can add. Not
    all readers write it there: some share it with their other bottoms, or leave it as it was set."""
    blobs, reading = [top], readers.get(top, [])
    if [type(each) for each in reading] == [Split]:
        blobs = reading[0].tops
        reading = [each for blob in blobs for each in readers.get(blob, [])]
    if not top.needs_gradient:
        return True
    return not top.gradient_is_set and all(_writes_gradient(layer, blobs) for layer in reading)


def _writes_gradient(layer: Layer, blobs: list[Blob]) -> bool:
    if isinstance(layer, Concat):
        return len(layer.bottoms) > 1
    added = layer.bottoms[1:]
    return isinstance(layer, (BatchNorm, Convolution, Pooling)) and not any(blob in blobs for blob in added)


def _may_chain(layer: Layer) -> bool:
    return isinstance(layer, Concat) and len(layer.bottoms) > 1 and layer.axis == 1 and len(layer.shapes[0]) == 4


def _reads_prefix(layer: Layer, blob: Blob) -> bool:
    """Tells whether a layer can read a blob that is a prefix of a larger one, and writes its gradient by itself."""
    if type(layer) is not BatchNorm or layer.stats_batch_size:
        return False
    return layer.bottoms[0] is blob and layer.bottoms.count(blob) == 1
