"""Marks the parameters of nets that are only tested as constant, so that ops prepare them once and not in every
forward: they bring weights into the kernel's layout and precision, and fold a normalisation by running statistics into
them. The result changes by rounding only."""

from __future__ import annotations

from engine.graph.graph import Graph


def mark_constant(graph: Graph) -> None:
    """Marks the layers of a graph without a backward. Runs before layers are fused: with constant parameters
    convolutions can absorb more."""
    for layer in graph.layers:
        layer.constant = True
