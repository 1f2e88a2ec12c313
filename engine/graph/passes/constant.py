"""Marks the parameters of nets that are only tested as constant, so that kernels prepare them once and not at every
forward: weights in the kernel's layout and precision, with a normalisation by running statistics folded into them. The
result changes by rounding only."""

from __future__ import annotations

from engine.graph.graph import Graph


def mark_constant(graph: Graph) -> None:
    """For nets without a backward. Runs before layers are fused: convolutions can then take over more."""
    for layer in graph.layers:
        layer.constant = True
