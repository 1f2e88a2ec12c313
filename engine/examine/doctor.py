"""`engine doctor`: makes the preflight of a run without the run, and shows the map of cores and the measured link."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from engine import proto
from engine.comm.factory import settings_of
from engine.comm.mpi_world import mpi_library
from engine.comm.precision import asked_precision, usable_precision
from engine.comm.preflight import check_sum, compare, compare_data, describe_hosts, versions
from engine.config import SolverConfig, net_of_solver, nets_of_solver
from engine.data.decode import jpeg_decoder
from engine.data.feeder import Feeder
from engine.data.prefetch import data_threads
from engine.errors import ranges_text
from engine.graph.build import build
from engine.host.cores import all_hosts_and_cores, clash_warning, core_plan, host_and_cores
from engine.host.launch import mpiexec
from engine.host.ranks import gather_everywhere
from engine.report.log import log
from engine.report.table import table
from engine.solver.stages import check_stages, texts_of_stages
from engine.solver.validate import tests, validate

if TYPE_CHECKING:
    from engine.comm.world import World


def doctor(world: World, configs: Sequence[SolverConfig] = (), *, skip_bad_images: bool = False) -> dict[str, Any]:
    """Collective. Returns what was found, by what it is of; the same on all ranks. Raises CommError and DataError if
    ranks differ, and what reading nets and opening data raises.

    Args:
        configs: the solvers of the stages of a run.
        skip_bad_images: whether the run will skip them.
    """
    check_stages(configs, world, skip_bad_images)
    for config in configs:
        validate(config.message, config.place)
    found = versions(world)
    compare(world, found | texts_of_stages(configs))
    check_sum(world)
    line, warning = describe_hosts([host for host, _ in all_hosts_and_cores(world)])
    plan, plan_warning = _core_plan(world, configs[0] if configs else None)
    result: dict[str, Any] = {"ranks": line, **found, "sum": "right"}
    if world.size == 1:
        result["MPI"] = _installed_mpi()
    for number, config in enumerate(configs, start=1):
        stage = f" of stage {number}" if len(configs) > 1 else ""
        result[f"layouts{stage}"] = _layouts(world, config, skip_bad_images)
        if world.size > 1:
            result[f"data{stage}"] = _data(world, config, skip_bad_images)
    result["JPEGs"] = f"decoded by {jpeg_decoder()}"
    result["link"] = str(world.links()) or "one rank: none"
    result["cores"] = _by_rank(gather_everywhere(world, plan))
    gathered = gather_everywhere(world, plan_warning)
    result["warnings"] = [text for text in dict.fromkeys([warning, *gathered, clash_warning(world)]) if text]
    return result


def _installed_mpi() -> str:
    """Returns which MPI several ranks would use. One rank needs none."""
    library, starter = mpi_library(), mpiexec()
    if not library:
        return "none: pip install mpi4py and mpich, or load the cluster's MPI module, for more than one rank"
    where = f"started by {starter}" if starter else "without an mpiexec in PATH"
    return f"{library} is installed, {where}; one rank does not use it"


def _core_plan(world: World, config: SolverConfig | None) -> tuple[str, str]:
    """Collective. Returns what core_plan() does, for a run of this solver."""
    from engine.host import _core

    settings = settings_of(world, config.message.comm_param if config else proto.CommParameter())
    alone = world.size == 1
    return core_plan(
        host_and_cores(),
        all_hosts_and_cores(world),
        threads=_core.threads(),
        servers=0 if alone else settings.servers,
        server_cores=None if alone else settings.cores,
        decoders=data_threads(),
        bound=_core.bound_cores(),
    )


def _layouts(world: World, config: SolverConfig, skip_bad_images: bool) -> str:
    """Collective. Returns whether the ranks' kernels want the parameters of the train net in the same layouts."""
    from engine.data.source_shapes import SourceShapes
    from engine.net import Net, NetOptions

    train = net_of_solver(config, proto.TRAIN)
    shapes = SourceShapes(train.message, proto.TRAIN, log, ranks=config.ranks, skip_bad_images=skip_bad_images)
    precision = usable_precision(asked_precision(config.message), world)
    net = Net(train, proto.TRAIN, NetOptions(shapes_of=shapes, precision=precision))
    prints = gather_everywhere(world, net.fingerprint())
    other = next((rank for rank, found in enumerate(prints) if found != prints[0]), None)
    if other is None:
        return f"of {len(net.parameters)} parameters, the same on all ranks"
    return f"ranks 0 and {other} have different processors or oneDNN versions: plain layouts would be used"


def _data(world: World, config: SolverConfig, skip_bad_images: bool) -> str:
    """Collective. Compares the ranks' data sources as training does, but copies nothing to the hosts (`stage`)."""
    nets, sources = nets_of_solver(config), 0
    for net in filter(None, (nets.train, *(nets.tests if tests(config.message) else ()))):
        message = proto.NetParameter()
        message.CopyFrom(net.message)
        for layer in message.layer:
            for field in ("stage", "stage_keep", "stage_part"):
                layer.data_param.ClearField(field)
        net, phase = net.with_message(message), message.state.phase
        with contextlib.closing(Feeder(net, phase, 1, world, skip_bad_images=skip_bad_images)) as feeder:
            build(net, phase, shapes_of=feeder.shapes_of, to_look_at=True)
            compare_data(world, feeder.identities)
            sources += len(feeder.sources)
    return f"of {sources} source{'s' if sources != 1 else ''}, the same on all ranks"


def _by_rank(lines: list[str]) -> dict[str, str]:
    """Returns the ranks' lines, with one entry for all ranks that have the same: "0-3" -> line."""
    ranks: dict[str, list[int]] = {}
    for rank, line in enumerate(lines):
        ranks.setdefault(line, []).append(rank)
    return {ranges_text(numbers): line for line, numbers in ranks.items()}


def to_text(found: dict[str, Any]) -> str:
    """Returns a table for people."""
    rows = [(what, value) for what, value in found.items() if isinstance(value, str)]
    for ranks, plan in found["cores"].items():
        rows.append((f"rank{'s' if set(ranks) & set('-,') else ''} {ranks}", plan))
    rows += [("warning", text) for text in found["warnings"]]
    return table(("what", "found"), rows, "<<")
