"""With --model, times every layer forward and backward, and whole steps (forward, backward, update), on synthetic input
with the shapes of the net's data; the data itself is not needed. Times are medians; the first iteration is reported
separately. With --data, measures what the data of a solver's net take: processor time of an image by stage (read,
decode, resize, transform), and how many decoding threads keep the net fed, by its step on synthetic input.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from engine.verbs.options import add_budget, add_json, add_kernels, add_running, positive

ORDER = 30
RANKS = True
SUMMARY = "measure the layers of a net, whole training steps, and what its data take"
EXAMPLES = [
    "engine time --model nets/resnet50.prototxt --iterations 20",
    "engine time --model net.prototxt --phase TEST --json times.json",
    "engine time --data solver.prototxt",
]


def add_arguments(parser: ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--model", metavar="FILE", help="the net, a prototxt")
    what.add_argument("--data", metavar="SOLVER", help="measure the data of this solver's train net")
    parser.add_argument("--phase", choices=["TRAIN", "TEST"], help="TEST: forward only (default: TRAIN)")
    parser.add_argument("--iterations", type=positive, default=10, metavar="N", help="timed iterations (default: 10)")
    add_budget(parser)
    add_json(parser)
    add_kernels(parser)
    add_running(parser)


def run(options: Namespace) -> int:
    from engine.verbs.runtime import asked_model, phase_of, show, start, write_json

    if options.data:
        return _time_data(options)
    world = start(output=options.json, reading=options)
    from engine.comm.precision import usable_precision
    from engine.examine.benchmark import benchmark
    from engine.examine.times import to_json, to_text
    from engine.net.kernel_table import Kernels
    from engine.report.log import log

    phase = phase_of(options.phase or "TRAIN")
    precision = usable_precision(options.precision or "fp32", world)
    config = asked_model(options, phase)
    kernels = Kernels(options.kernels or "default", say=log)
    times = benchmark(config, phase, options.iterations, world, precision, options.memory_budget, kernels)
    if world.rank == 0:
        show(to_text(times), options.json)
        if options.json:
            write_json(to_json(times), options.json)
    return 0


def _time_data(options: Namespace) -> int:
    """Runs `engine time --data`."""
    from engine.errors import ConfigError
    from engine.verbs.runtime import asked_solver, show, start, write_json

    if options.phase == "TEST":
        raise ConfigError("--data measures the train net: leave --phase out")
    world = start(output=options.json, reading=options)
    from engine.comm.precision import asked_precision, usable_precision
    from engine.examine.data_times import data_times, to_json, to_text
    from engine.net.kernel_table import Kernels
    from engine.report.log import log

    config = asked_solver(options, options.data)
    precision = usable_precision(asked_precision(config.message), world)
    kernels = Kernels(options.kernels or "default", say=log)
    found = data_times(config, world, precision, options.iterations, kernels)
    show(to_text(found), options.json)
    if options.json:
        write_json(to_json(found), options.json)
    return 0
