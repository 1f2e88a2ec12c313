"""Trains the net that a solver file names: from scratch, from the weights of an earlier training (--weights) or from a
snapshot (--snapshot, --resume auto). Under mpiexec, every rank takes its share of the global batch: batch_size in the
net is per rank. SIGINT and SIGTERM stop between two iterations, or break off a test, with a snapshot. Several
solvers, separated by commas, run in a row, each from the weights that the one before leaves; --resume auto goes on in
the right one. In a solver, `adversarial` trains a second net against the first, comm_param's `mode` says whether ranks
wait for each other (SYNC, LOCAL, ASYNC), and its `elastic` lets a run go on when ranks die.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from engine.verbs.options import (
    add_budget,
    add_kernels,
    add_running,
    add_skip,
    automatic,
    comma_separated,
    positive,
    seconds,
)

if TYPE_CHECKING:
    from engine.comm.world import World
    from engine.config import SolverConfig
    from engine.net.kernel_table import Kernels
    from engine.report.observer import Observer
    from engine.solver.signals import Signals
    from engine.solver.stages import Position

ORDER = 10
RANKS = True
SUMMARY = "train a net, or continue training it"
EXAMPLES = [
    "engine train --solver solvers/digits.prototxt",
    "mpiexec -n 2 engine train --solver solvers/digits.prototxt --set max_iter=100",
    "engine train --solver solver.prototxt --snapshot net_iter_1000.solverstate",
    "engine train --solver collapse.prototxt --weights net_iter_7638.caffemodel",
    "engine train --solver solver.prototxt --ranks 4 --max_restarts 10",
    "engine train --solver solver.prototxt --tensorboard runs/first --histograms 500",
    "engine train --solver init.prototxt,cycle.prototxt,collapse.prototxt --resume auto",
    "mpiexec -n 4 engine train --solver solver.prototxt --set comm_param.mode=ASYNC",
    "mpiexec --with-ft ulfm -n 4 engine train --solver solver.prototxt --set comm_param.elastic.keep_every=10",
]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--solver", required=True, metavar="A,B", help="the solver, a prototxt; several run in a row")
    _add_start(parser)
    effects = ("stop", "snapshot", "none")
    parser.add_argument("--sigint_effect", choices=effects, default="stop", help="what SIGINT does (default: stop)")
    parser.add_argument(
        "--sighup_effect", choices=effects, default="snapshot", help="what SIGHUP does (default: snapshot)"
    )
    parser.add_argument(
        "--watchdog",
        type=seconds,
        metavar="SECONDS",
        help="end the run, and report where every rank is, when a rank makes no progress for this long; 0: never "
        "(default: ENGINE_WATCHDOG, else the solver's comm_param, else 60)",
    )
    parser.add_argument("--timeline", metavar="FILE", help="write a Chrome trace of a few iterations of all ranks")
    parser.add_argument(
        "--layer_times",
        action="store_true",
        help="end with a table of each layer's compute, communication and wait times",
    )
    parser.add_argument(
        "--tensorboard", metavar="DIR", help="write event files for TensorBoard: losses, rates, tests, times, the net"
    )
    parser.add_argument(
        "--histograms",
        type=positive,
        metavar="N",
        help="with --tensorboard: how weights and gradients are distributed, every N iterations",
    )
    parser.add_argument(
        "--shorten",
        type=positive,
        metavar="N",
        help="divide all that the solvers count in iterations or epochs by N: to try a recipe",
    )
    add_budget(parser)
    add_skip(parser)
    add_kernels(parser, "the snapshot's, else ")
    add_running(parser)


def _add_start(parser: ArgumentParser) -> None:
    """Adds the arguments that say where training starts from, and how many ranks to start."""
    parser.add_argument(
        "--resume",
        type=automatic,
        metavar="auto",
        help="continue from the newest complete snapshot, with the same global batch on any number of ranks; where "
        "there is none, start as without this flag",
    )
    parser.add_argument(
        "--ranks",
        type=positive,
        metavar="N",
        help="start N ranks on this host, at most 32 for each core, by the mpiexec found there",
    )
    parser.add_argument(
        "--max_restarts",
        type=positive,
        default=0,
        metavar="N",
        help="restart after a crash with --resume auto, at most N times (one rank, or --ranks)",
    )
    start = parser.add_mutually_exclusive_group()
    start.add_argument("--snapshot", metavar="FILE", help="a .solverstate to continue from")
    start.add_argument(
        "--weights",
        type=comma_separated,
        default=[],
        metavar="A,B",
        help=".caffemodel files to start from, matched by layer name",
    )


def run(options: Namespace) -> int:
    if options.ranks or options.max_restarts:
        from engine.watchdog.supervise import supervise

        return supervise(options.arguments, options.ranks or 1, options.max_restarts, bool(options.resume))

    import gc
    import os

    from engine.solver.signals import Signals
    from engine.verbs.runtime import asked_solvers, start

    signals = Signals(options.sigint_effect, options.sighup_effect)
    signals.heed_hangups()
    if options.watchdog is not None:
        os.environ["ENGINE_WATCHDOG"] = options.watchdog
    world = start(watched=True, output=options.timeline, reading=options)
    from engine.errors import ConfigError
    from engine.solver.stages import next_position
    from engine.watchdog.board import SET_UP

    if options.histograms and not options.tensorboard:
        raise ConfigError("--histograms go into event files: give --tensorboard DIR, too")
    configs = asked_solvers(options)
    position = _position(options, configs, world)
    while True:
        left = _train(options, configs, position, world, signals)
        if left is None or position.index == len(configs) - 1:
            return 0
        world.board.enter(SET_UP)  # the next stage's may take as long as the first one's
        options.timeline = None  # it shows the first stage only
        gc.collect()  # closes data sources that nobody reads any more
        position = world.broadcast_object(next_position(configs, position, *left) if world.rank == 0 else position)


def _position(options: Namespace, configs: list[SolverConfig], world: World) -> Position:
    """Checks all solvers before the first of them begins. Returns which one to begin, or to go on with."""
    from engine.comm.preflight import preflight
    from engine.errors import ConfigError
    from engine.solver.resume import note_known, take_prefix
    from engine.solver.snapshot_files import snapshot_prefix
    from engine.solver.stages import Position, check_stages, first_position, resume_stages, texts_of_stages
    from engine.solver.validate import check_snapshots, saves

    if options.snapshot and len(configs) > 1:
        raise ConfigError("--snapshot continues one solver; --resume auto finds the stage of several, and its snapshot")
    check_stages(configs, world, options.skip_bad_images)
    if world.rank == 0:  # it writes the snapshots
        for config in configs:
            check_snapshots(config.message, config.path, config.where(path="snapshot_prefix"))
        note_known([snapshot_prefix(config, world) for config in configs if saves(config.message)])
        for config in configs:
            take_prefix(config, world)
    preflight(world, texts_of_stages(configs))
    _watch(configs[0], world)
    if options.resume:
        return resume_stages(configs, world, options.weights)
    return world.broadcast_object(first_position(configs, options.weights) if world.rank == 0 else Position())


def _watch(config: SolverConfig, world: World) -> None:
    """Sets how long a rank may make no progress to what a solver says."""
    from engine.comm.settings import watchdog_seconds

    world.watch(watchdog_seconds(config.message.comm_param, where=config.where(path="comm_param")))


def _train(
    options: Namespace, configs: list[SolverConfig], position: Position, world: World, signals: Signals
) -> tuple[str, int] | None:
    """Trains a stage. Returns the weights that it leaves and its place in the sequence of samples; None if a signal
    stopped it."""
    from functools import partial

    from engine.data.feeder import Feeder
    from engine.report.log import log
    from engine.solver.adversarial import solver_of
    from engine.solver.resume import warn_of_later

    config = configs[position.index]
    snapshot = position.snapshot or options.snapshot
    if len(configs) > 1:
        _watch(config, world)
        log(f"Stage {position.index + 1} of {len(configs)}: {config.path}")
    solver = solver_of(
        config,
        world,
        signals=signals,
        observers=_observers(options, configs, position, world),
        make_feeder=partial(Feeder, skip_bad_images=options.skip_bad_images),
        kernels=_kernels(options, snapshot, world),
        needed=[path for later in configs[position.index + 1 :] for path in later.message.weights],
    )
    solver.begin_after(position.first_sample, position.begun_from)
    if snapshot:
        solver.restore(snapshot)
    elif position.weights:
        solver.load_weights(position.weights)
    if world.rank == 0 and position.index == 0 and not options.resume:  # later stages count only their own snapshots
        warn_of_later(config, world, solver.iteration)
    finished = solver.solve()
    if not finished and config.message.snapshot_after_train:
        log("Continue with --resume auto")
    left = str(solver.snapshots.names(solver.iteration)[0]), solver.state.samples_seen
    solver.close()
    return left if finished else None


def _observers(options: Namespace, configs: list[SolverConfig], position: Position, world: World) -> list[Observer]:
    """Returns the observers of a stage."""
    from pathlib import Path

    from engine.report.display import TrainingBar
    from engine.report.layer_times import LayerTimes
    from engine.report.summary import Summary
    from engine.report.timeline import Timeline

    observers: list[Observer] = [TrainingBar(), Summary()]
    if options.layer_times:
        observers.append(LayerTimes())
    if options.timeline:
        observers.append(Timeline(options.timeline))
    if options.tensorboard:
        from engine.report.tensorboard import TensorBoard

        stems = [Path(each.path).stem for each in configs]
        stage = stems[position.index] if len(configs) > 1 else ""  # a folder each, for each counts iterations from 0
        if stems.count(stage) > 1:
            stage = f"{position.index + 1}_{stage}"
        folder = str(Path(options.tensorboard) / stage)
        observers.append(TensorBoard(folder, options.histograms or 0, world.rank))
    return observers


def _kernels(options: Namespace, snapshot: str | None, world: World) -> Kernels:
    """Returns the kernels of the snapshot, by which training goes on bit by bit, unless the user has named others."""
    from engine.net.kernel_table import Kernels
    from engine.report.log import log
    from engine.weights import read_solverstate

    mode, table = options.kernels or "default", None
    if snapshot and options.kernels in (None, "measure"):
        table = world.broadcast_object(read_solverstate(snapshot).kernels if world.rank == 0 else None)
    return Kernels(mode, table, log, world.board.beat)
