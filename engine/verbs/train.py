"""Trains the net that a solver file names: from scratch, from the weights of an earlier training (--weights) or from a
snapshot (--snapshot, --resume auto). Under mpiexec, every rank takes its share of the global batch: batch_size in the
net is per rank. SIGINT and SIGTERM stop after the current iteration, with a snapshot.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from engine.verbs.options import add_budget, add_running, add_skip, automatic, comma_separated, positive, seconds

ORDER = 10
SUMMARY = "train a net, or continue training it"
EXAMPLES = [
    "engine train --solver solvers/digits.prototxt",
    "mpiexec -n 2 engine train --solver solvers/digits.prototxt --set max_iter=100",
    "engine train --solver solver.prototxt --snapshot net_iter_1000.solverstate",
    "engine train --solver collapse.prototxt --weights net_iter_7638.caffemodel",
    "engine train --solver solver.prototxt --ranks 4 --max_restarts 10",
]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--solver", required=True, metavar="FILE", help="the solver, a prototxt")
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
    add_budget(parser)
    add_skip(parser)
    add_running(parser)


def _add_start(parser: ArgumentParser) -> None:
    """Where training starts from, and who starts it."""
    parser.add_argument(
        "--resume",
        type=automatic,
        metavar="auto",
        help="continue from the newest complete snapshot, with the same global batch on any number of ranks; where "
        "there is none, start as without this flag",
    )
    parser.add_argument(
        "--ranks", type=positive, metavar="N", help="start N ranks on this host, by the mpiexec found there"
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

        return supervise(options.arguments, options.ranks or 1, options.max_restarts)

    import os
    from functools import partial

    from engine.solver.signals import Signals
    from engine.verbs.runtime import asked_solver, start

    signals = Signals(options.sigint_effect, options.sighup_effect)
    signals.heed_hangups()
    if options.watchdog is not None:
        os.environ["ENGINE_WATCHDOG"] = options.watchdog
    world = start(watched=True, output=options.timeline)
    from engine.comm.preflight import preflight
    from engine.comm.settings import watchdog_seconds
    from engine.config.config import texts_of
    from engine.data.feeder import Feeder
    from engine.report.display import TrainingBar
    from engine.report.layer_times import LayerTimes
    from engine.report.observer import Observer
    from engine.report.timeline import Timeline
    from engine.solver.resume import resume, take_prefix
    from engine.solver.solver import Solver
    from engine.solver.validate import check_snapshots

    config = asked_solver(options)
    message = config.message
    if world.rank == 0:  # which writes
        check_snapshots(message, config.path, config.where(path="snapshot_prefix"))
        take_prefix(config, world)
    preflight(world, texts_of(config))
    world.watch(watchdog_seconds(message.comm_param, where=config.where(path="comm_param")))
    snapshot = options.snapshot
    if options.resume:
        snapshot = resume(config, world) or snapshot
    observers: list[Observer] = [TrainingBar()]
    if options.layer_times:
        observers.append(LayerTimes())
    if options.timeline:
        observers.append(Timeline(options.timeline))
    solver = Solver(
        config,
        world,
        signals=signals,
        observers=observers,
        feeder=partial(Feeder, skip_bad_images=options.skip_bad_images),
    )
    if snapshot:
        solver.restore(snapshot)
    elif weights := options.weights or list(message.weights):
        solver.load_weights(weights)
    solver.solve()
    solver.close()
    return 0
