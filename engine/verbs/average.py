"""Averages the weights of several .caffemodel files of one net, such as a run's last snapshots, or the ends of the
cycles of a cyclic learning rate (stochastic weight averaging). The averages of BatchNorm's statistics are not the
statistics of the averaged net: with --model or --solver they are computed anew, on the net's training data.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from engine.verbs.options import OF_RUNS, add_running, add_skip, positive

if TYPE_CHECKING:
    from engine.comm.world import World
    from engine.inference.average import Blobs

ORDER = 25
RANKS = True
SUMMARY = "average the weights of several files of one net"
EXAMPLES = [
    "engine average x_iter_9000.caffemodel x_iter_9500.caffemodel x_iter_10000.caffemodel average.caffemodel",
    "mpiexec -n 4 engine average a.caffemodel b.caffemodel average.caffemodel --solver s.prototxt --iterations 200",
]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="WEIGHTS", help="two .caffemodel files or more")
    parser.add_argument("out", metavar="OUT", help="the .caffemodel to write, which must not exist yet")
    net = parser.add_mutually_exclusive_group()
    net.add_argument(
        "--model", metavar="FILE", help="the net, a prototxt, on whose training data to compute statistics"
    )
    net.add_argument("--solver", metavar="FILE", help="a solver, whose net that is")
    parser.add_argument(
        "--iterations",
        type=positive,
        metavar="N",
        help="batches to compute statistics on, of all ranks together (default: one epoch)",
    )
    add_skip(parser)
    add_running(parser)


def run(options: Namespace) -> int:
    import os

    from engine.errors import ConfigError, WeightsError
    from engine.files import check_writable
    from engine.verbs.runtime import refuse_idle, start

    if not (options.model or options.solver):
        refuse_idle(options, ("--iterations", "--skip_bad_images", *OF_RUNS), "without --model or --solver")
    if len(options.files) < 2:
        raise ConfigError(f"expected two files or more to average, then OUT; got {len(options.files) + 1} names")
    world = start()
    if world.rank == 0:  # only here: rank 0 may have written it before other ranks look
        if os.path.lexists(options.out):
            raise WeightsError("OUT exists already; remove it, or choose another name", options.out)
        check_writable(options.out)
    from engine import proto
    from engine.inference.average import average_files, has_statistics
    from engine.report.log import log, warn
    from engine.weights import write_caffemodel

    blobs = average_files(options.files)
    message = proto.NetParameter()
    message.layer.extend(proto.LayerParameter(name=name) for name in blobs)
    if options.model or options.solver:
        message, blobs = _recompute(options, blobs, world)
    elif has_statistics(blobs):
        warn("BatchNorm's statistics are averaged like weights; --model or --solver computes them on data")
    if world.rank == 0:
        write_caffemodel(options.out, message, blobs)
    log(f"Wrote the average of {len(options.files)} files to {options.out}")
    return 0


def _recompute(options: Namespace, blobs: Blobs, world: World):
    """Returns the net and its blobs, with BatchNorm's statistics computed on data."""
    from functools import partial

    from engine.comm.precision import asked_precision, usable_precision
    from engine.config import net_of_solver, seed_of
    from engine.data.feeder import Feeder
    from engine.inference.average import Averaged
    from engine.net import NetOptions
    from engine.report.log import log
    from engine.verbs.runtime import asked_model, asked_solver, phase_of

    seed, precision = 1, options.precision or "fp32"
    if options.solver:
        solver = asked_solver(options)
        config, param = net_of_solver(solver, phase_of("TRAIN")), solver.message
        seed, precision = seed_of(param), asked_precision(param)
    else:
        config = asked_model(options, phase_of("TRAIN"))
    net_options = NetOptions(seed=seed, precision=usable_precision(precision, world))
    make_feeder = partial(Feeder, skip_bad_images=options.skip_bad_images)
    averaged = Averaged(config, blobs, f"the average of {', '.join(options.files)}", world, net_options, make_feeder)
    if averaged.has_statistics:
        log(f"Computed BatchNorm's statistics on {averaged.recompute(options.iterations)} batches.")
    return config.message, averaged.net.weights_by_layer()
