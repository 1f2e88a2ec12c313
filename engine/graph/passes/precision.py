"""Mixed precision: activations and their gradients in bf16 where that saves time, everything else in float32.

Convolutions, inner products and recurrent layers always run in bf16: it halves what they read and doubles or, with
matrix units, more than doubles what they compute. An inner product writes float32 where its readers want that.
Recurrent layers take x in bf16, multiply in bf16, and keep their states and tops in float32. Layers that can take bf16
(`Layer.bf16`) do so when a bottom comes in bf16, so that nothing is converted only to be converted back; losses, labels
and all other layers see float32 (which powers stay so, and why: `Power`). Parameters, their gradients and BatchNorm's
statistics are float32 everywhere: ops convert what their kernels read. The exponent of bf16 is that of float32, so that
losses need no scaling (Kalamkar et al. 2019, arXiv 1905.12322).
"""

from __future__ import annotations

from engine import proto
from engine.graph.graph import Graph
from engine.layers.base import Blob, Layer
from engine.layers.cast import Cast

ALWAYS = ("Convolution", "Deconvolution", "GRU", "InnerProduct", "LSTM", "Lstm", "RNN")  # those that gain by themselves


def lower_precision(graph: Graph) -> None:
    """Inserts Cast layers between layers of different precision, one for each blob that needs it. Runs after splits are
    inserted: every blob has one reader."""
    narrow: set[Blob] = set()
    layers: list[Layer] = []
    readers = graph.readers()

    def is_read_wide(blob: Blob) -> bool:
        """Where nobody would take it in bf16: an output, or what a loss or Accuracy reads, which should not see ties
        that only rounding makes."""
        for reader in readers.get(blob, ()):  # one at most
            if reader.type == "Split":
                return all(is_read_wide(top) for top in reader.tops)
            i = reader.bottoms.index(blob)
            return not reader.bf16 or i in reader.wide_bottoms or i in reader.shape_bottoms
        return True

    for layer in graph.layers:
        given = {i: blob for i, blob in enumerate(layer.bottoms) if i not in layer.shape_bottoms}
        runs_narrow = layer.bf16 and (
            layer.type in ALWAYS or any(blob in narrow for i, blob in given.items() if i not in layer.wide_bottoms)
        )
        for i, blob in given.items():
            wanted_narrow = runs_narrow and i not in layer.wide_bottoms
            if (blob in narrow) == wanted_narrow:
                continue
            layers.append(_cast(blob, layer, wanted_narrow))
            layer.bottoms[i] = layers[-1].tops[0]
        layer.widens = runs_narrow and layer.can_widen and all(is_read_wide(top) for top in layer.tops)
        if runs_narrow and not (layer.wide_tops or layer.widens):
            narrow.update(layer.tops)
        layers.append(layer)
    graph.layers = layers


def _cast(blob: Blob, reader: Layer, to_bf16: bool) -> Layer:
    name = f"{blob.name}_{reader.name}_{'bf16' if to_bf16 else 'fp32'}"
    message = proto.LayerParameter(name=name, type="Cast", bottom=[blob.name], top=[name])
    cast = Cast(message, reader.where, reader.phase)
    cast.to_bf16, cast.in_rows = to_bf16, reader.takes_rows
    cast.bottoms = [blob]
    cast.tops = [Blob(name, blob.shape, blob.needs_gradient and not blob.gradient_is_set)]
    cast.loss_weights = [0.0]
    return cast
