"""Mixed precision: activations and their gradients in bf16 where that saves time, everything else in float32.

Convolutions, inner products and recurrent layers always run in bf16: that halves the bytes that they read, and their
kernels compute twice as fast, with matrix units even faster. An inner product writes float32 if its readers want that.
Recurrent layers take x in bf16, multiply in bf16, and keep their states and tops in float32. Other layers that can take
bf16 (`Layer.bf16`) do so if a bottom is in bf16, so that nothing is converted only to be converted back. Losses, labels
and all other layers see float32 (`Power` says which powers do, and why). Parameters, their gradients and BatchNorm's
statistics are float32 everywhere: ops convert what their kernels read. bf16 has the exponent of float32, so that losses
need no scaling (Kalamkar et al. 2019, arXiv 1905.12322).
"""

from __future__ import annotations

from engine import proto
from engine.graph.graph import Graph
from engine.layers.base import Blob, Layer
from engine.layers.cast import Cast

# The types that run in bf16 even if their bottoms must be converted first.
ALWAYS = ("Convolution", "Deconvolution", "GRU", "InnerProduct", "LSTM", "Lstm", "RNN")


def lower_precision(graph: Graph) -> None:
    """Inserts Cast layers between layers of different precision, one for each blob that needs it. Runs after splits are
    inserted: every blob has one reader."""
    narrow: set[Blob] = set()  # blobs in bf16; all others are wide, float32
    layers: list[Layer] = []
    readers = graph.readers()

    def is_read_wide(blob: Blob) -> bool:
        """Tells whether no reader takes a blob in bf16: for outputs, and for what a loss or Accuracy reads, which
        should not see ties that only rounding makes."""
        for reader in readers.get(blob, ()):  # there is one at most
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
    """Returns a Cast that converts a blob for its reader."""
    name = f"{blob.name}_{reader.name}_{'bf16' if to_bf16 else 'fp32'}"
    message = proto.LayerParameter(name=name, type="Cast", bottom=[blob.name], top=[name])
    cast = Cast(message, reader.where, reader.phase)
    cast.to_bf16, cast.in_rows = to_bf16, reader.takes_rows
    cast.bottoms = [blob]
    cast.tops = [Blob(name, blob.shape, blob.needs_gradient and not blob.gradient_is_set)]
    cast.loss_weights = [0.0]
    return cast
