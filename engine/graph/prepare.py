"""Runs the rewriting passes in their order, between building and lowering a graph."""

from __future__ import annotations

from engine.graph.graph import Graph
from engine.graph.passes.chain_concats import chain_concats
from engine.graph.passes.constant import mark_constant
from engine.graph.passes.fuse import fuse
from engine.graph.passes.gradients import mark_gradients
from engine.graph.passes.precision import lower_precision
from engine.graph.passes.split import insert_splits
from engine.graph.passes.subsample import subsample

# The passes that can be switched off. insert_splits and mark_gradients always run: without them a graph has no
# gradients. "memory_plan" is not a rewrite of the graph; Net reads it.
PASSES = frozenset({"chain_concats", "constant", "fuse", "memory_plan", "subsample"})


def prepare(graph: Graph, passes: frozenset[str] = PASSES, precision: str = "fp32", gradients: bool = True) -> Graph:
    """Rewrites a graph, in place, and returns it.

    passes: those of PASSES that run. precision: "fp32" or "bf16". gradients: whether there is a backward."""
    if "subsample" in passes:
        subsample(graph)
    insert_splits(graph)
    mark_gradients(graph, gradients)
    if "constant" in passes and not gradients:
        mark_constant(graph)
    if "fuse" in passes:
        fuse(graph)
    if precision == "bf16":
        lower_precision(graph)
    if "chain_concats" in passes:
        chain_concats(graph)
    return graph
