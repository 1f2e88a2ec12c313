"""Builds the train net on several ranks: gives each its parts of layers, and all the same parameter layouts."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from engine import proto
from engine.comm.preflight import compare_data
from engine.comm.world import World
from engine.config import NetConfig
from engine.errors import shape_text
from engine.graph.model_parallel import model_parts
from engine.layers.batch_norm import BatchNorm
from engine.layers.kernels import Choices
from engine.layers.model_parallel import Part
from engine.net import Net, NetOptions
from engine.net.kernel_table import Kernels
from engine.report.log import log
from engine.report.table import human
from engine.solver.update import remembered

if TYPE_CHECKING:
    from engine.comm.mpi_group import MpiGroup
    from engine.data.feeder import Feeder
    from engine.solver.solver import Solver


def parts_of_ranks(config: NetConfig, world: World) -> tuple[list[MpiGroup], dict[str, Part]]:
    """Returns the groups of ranks that hold layers together, and this rank's parts of layers, by the layers' names."""
    counts = model_parts(config, world.size)
    groups = {count: world.group(count) for count in sorted(set(counts.values()))}
    parts = {name: Part(world.rank % count, count, groups[count]) for name, count in counts.items()}
    return list(groups.values()), parts


def memory_budget(param: proto.SolverParameter) -> int | None:
    """Returns memory_budget_mb in bytes; None if it is 0, for no limit."""
    return math.ceil(1e6 * param.memory_budget_mb) or None


def net_options(solver: Solver, parts: dict[str, Part]) -> NetOptions:
    """Returns the options of a solver's train net. parts: this rank's parts of layers."""
    options = NetOptions(
        seed=solver.seed,
        shapes_of=solver.feeder.shapes_of,
        accumulate=solver.param.iter_size > 1 or _may_grow(solver.param),
        precision=solver.precision,
        memory_budget=memory_budget(solver.param),
        parts=parts,
        besides=partial(_besides, solver.feeder, remembered(solver.param, solver.world.size)),
    )
    return options.watched().replace(accumulate=True) if solver.every_blob else options


def _besides(feeder: Feeder, sets: float, learned: int) -> dict[str, int]:
    """Returns the memory besides a net's own, in bytes: see NetOptions.besides.

    sets: how many numbers the optimizer remembers for each that is learned. learned: bytes of what is learned."""
    return {**feeder.ring_bytes(), "": int(sets * learned)}


def _may_grow(param: proto.SolverParameter) -> bool:
    """Tells whether an iteration may have more micro-batches later than iter_size says."""
    holds = param.comm_param.elastic.batch == proto.ElasticParameter.HOLD
    return param.HasField("batch_growth") or (param.comm_param.HasField("elastic") and holds)


def build_alike(
    config: NetConfig,
    options: NetOptions,
    world: World,
    feeder: Feeder,
    kernels: Kernels,
    share: Net | None = None,
) -> Net:
    """Collective. Builds the net in the same layouts on every rank: in plain ones if processors or libraries differ.

    feeder: its sources are opened by the net. kernels: chooses the kernels that compute it. share: as for Net.
    Raises DataError if sources are not the same on all ranks, CommError if layers that ranks compute together differ in
    their shapes.
    """

    def make(choices: Choices) -> Net:
        return Net(config, proto.TRAIN, options.replace(kernels=choices), share=share)

    net = kernels.build(make, world)
    compare_data(world, feeder.identities)
    world.same_on_all_ranks(_shapes_together(net), "shapes of layers that they compute together (bn_sync, model_parts)")
    if options.memory_budget:
        log(
            f"Memory budget {options.memory_budget / 1e6:g} MB: blobs, gradients and masks take "
            f"{human(net.program.activation_bytes, 'B')}; {len(net.repeats)} layers are computed twice"
        )
    prints = world.gather(net.fingerprint()) or [""]
    other = world.broadcast_object(next((r for r, found in enumerate(prints) if found != prints[0]), None))
    if other is None:
        return net
    log(f"Ranks 0 and {other} have different processors or oneDNN versions: parameters stay in plain layouts.")
    options = options.plain()
    del net  # before the next one takes its memory
    net = kernels.build(make, world)
    world.same_on_all_ranks(net.fingerprint(layouts_only=True), "the net's parameters")
    return net


def _shapes_together(net: Net) -> str:
    """Returns the shapes of layers that ranks compute together, as text: those with synchronised BatchNorm, and those
    of which ranks hold parts."""
    together = [
        layer
        for layer in net.graph.layers
        if (isinstance(layer, BatchNorm) and layer.sync) or any(parameter.parts > 1 for parameter in layer.params)
    ]
    return ", ".join(f"{shape_text(shape)} ('{layer.name}')" for layer in together for shape in layer.shapes)
