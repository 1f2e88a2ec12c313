"""Merges a Scale into the BatchNorm before it, as other frameworks have them, or both into the weights before them."""

from __future__ import annotations

from typing import cast

import numpy as np

from engine.exchange.deploy_graph import DeployGraph
from engine.exchange.onnx_writer import Writer
from engine.exchange.to_onnx.normalisation import affine, statistics
from engine.layers.base import Layer
from engine.layers.batch_norm import BatchNorm
from engine.layers.bn import BN
from engine.layers.convolution import Convolution
from engine.layers.deconvolution import Deconvolution
from engine.layers.im2col import Im2col
from engine.layers.inner_product import InnerProduct
from engine.layers.scale import Scale

Coefficients = tuple[np.ndarray, np.ndarray]  # scale and shift, each with a value for each channel


class Merger:
    """Finds the layers that merge into the one before them, whose top no other layer may read.

    Args:
        writer: gets the new weights of layers that others are folded into.
        fold: also fold a Scale, or a BatchNorm by running statistics, into a Convolution, Deconvolution or InnerProduct
            before it.
    Attributes:
        merged: layers that have merged, so that they need not be written.
        scales: the scale and shift of a BatchNorm that a Scale has merged into, by BatchNorm.
    """

    def __init__(self, graph: DeployGraph, writer: Writer, fold: bool):
        self.merged: set[Layer] = set()
        self.scales: dict[Layer, Coefficients] = {}
        self._writer = writer
        readers = graph.readers()
        maker: dict[object, Layer] = {top: layer for layer in graph.layers for top in layer.tops}
        for layer in graph.layers:
            if len(layer.bottoms) != 1 or len(layer.tops) != 1:
                continue
            between = layer.bottoms[0]
            before = maker.get(between)
            if before is None or len(readers[between]) > 1 or between in graph.outputs:
                continue
            if self._into_norm(before, layer) or (fold and self._into_weights(before, layer)):
                self.merged.add(layer)
                maker[layer.tops[0]] = before  # so that a layer that follows may merge, too

    def _into_norm(self, before: Layer, layer: Layer) -> bool:
        """Merges a Scale into the BatchNorm before it; returns False if the two are something else."""
        if before.type != "BatchNorm" or before in self.scales or before.message.batch_norm_param.relu:
            return False
        if not (isinstance(layer, Scale) and layer.is_per_channel):
            return False
        own_scale, own_shift = affine(self._writer, cast(BatchNorm, before))
        scale, shift = self._scale(layer)
        self.scales[before] = own_scale * scale, own_shift * scale + shift
        return True

    def _scale(self, layer: Scale) -> Coefficients:
        scale, *shift = self._writer.arrays(layer)
        return scale, shift[0] if shift else np.zeros_like(scale)

    def _into_weights(self, before: Layer, layer: Layer) -> bool:
        """Folds a layer into the weights of the one before it; returns False if that is not possible."""
        if isinstance(before, Im2col) or not isinstance(before, Convolution | InnerProduct) or before.param.relu:
            return False
        if len(before.tops) > 1 or before.axis != 1:
            return False
        if isinstance(before, InnerProduct) and before.param.normalize:
            return False
        found = self._coefficients(layer)
        if found is None:
            return False
        scale, shift = (each.astype(np.float64) for each in found)
        weights, *bias = self._writer.arrays(before)
        weights = weights * _over_outputs(before, scale, weights)
        shift = shift + (bias[0] * scale if bias else 0)
        self._writer.fold(before, [weights.astype(np.float32), shift.astype(np.float32)])
        return True

    def _coefficients(self, layer: Layer) -> Coefficients | None:
        """Returns the scale and shift that a layer amounts to; None if it does anything else.

        A BatchNorm has only its own here: its Scale comes later, and is then folded by itself.
        """
        if isinstance(layer, Scale) and layer.is_per_channel:
            return self._scale(layer)
        if isinstance(layer, BN):
            scale, shift, *stats = (array.ravel().astype(np.float64) for array in self._writer.arrays(layer))
            if layer.is_affine or not stats:
                return (scale, shift) if layer.is_affine else None
            return _normalising(stats[0], stats[1], cast(float, layer.attributes()["eps"]), scale, shift)
        if not isinstance(layer, BatchNorm) or not layer.use_global_stats or layer.message.batch_norm_param.relu:
            return None
        mean, variance = (each.astype(np.float64) for each in statistics(self._writer, layer))
        scale, shift = (each.astype(np.float64) for each in affine(self._writer, layer))
        return _normalising(mean, variance, layer.message.batch_norm_param.eps, scale, shift)


def _normalising(
    mean: np.ndarray, variance: np.ndarray, eps: float, scale: np.ndarray, shift: np.ndarray
) -> Coefficients:
    """Returns scale (x - mean) / sqrt(variance + eps) + shift as one scale and shift of x."""
    factor = scale / np.sqrt(variance + eps)
    return factor, shift - mean * factor


def _over_outputs(layer: Convolution | InnerProduct, scale: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Returns the scale of each output in a shape to multiply the weights by."""
    if isinstance(layer, InnerProduct):
        return scale if layer.param.transpose else scale[:, None]
    behind = [1] * (weights.ndim - 2)
    if not isinstance(layer, Deconvolution):
        return scale.reshape(-1, 1, *behind)
    each = scale.reshape(layer.param.group, 1, -1)  # (group, inputs, outputs of a group)
    inputs = weights.shape[0] // layer.param.group
    return np.broadcast_to(each, (each.shape[0], inputs, each.shape[2])).reshape(*weights.shape[:2], *behind)
