"""Trains for some iterations while the learning rate grows from step to step, until the loss diverges (a range test:
Smith 2017, arXiv 1506.01186), and suggests a base_lr: where the loss falls fastest. Everything else is as the solver
has it, without warm-up, tests and lr_scaling; nothing is saved. Under mpiexec the rate is that of the global batch. For
a solver with lr_scaling, the suggestion is the base_lr which lr_scaling turns into that rate.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from engine.verbs.options import add_budget, add_json, add_running, add_skip, comma_separated, number, positive

ORDER = 25
RANKS = True
SUMMARY = "find a learning rate: train while it grows, until the loss diverges"
EXAMPLES = [
    "engine find_rate --solver solvers/digits.prototxt --output rates.png",
    "mpiexec -n 2 engine find_rate --solver solver.prototxt --from 1e-4 --to 3 --iterations 300 --output rates.svg",
    "engine find_rate --solver solver.prototxt --weights pretrained.caffemodel",
]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--solver", required=True, metavar="FILE", help="the solver, a prototxt")
    parser.add_argument(
        "--weights", type=comma_separated, default=[], metavar="A,B", help=".caffemodel files to start from"
    )
    parser.add_argument(
        "--from", dest="lowest", type=rate, default=1e-5, metavar="RATE", help="the first rate (default: 1e-5)"
    )
    parser.add_argument(
        "--to", dest="highest", type=rate, default=10.0, metavar="RATE", help="the last rate (default: 10)"
    )
    parser.add_argument("--iterations", type=positive, default=100, metavar="N", help="how many rates (default: 100)")
    parser.add_argument(
        "--output", metavar="FILE", help="the curve, .png, .svg or .pdf; its table goes beside it, as FILE.csv"
    )
    add_json(parser)
    add_budget(parser)
    add_skip(parser)
    add_running(parser)


def rate(text: str) -> float:
    """Returns a rate that is neither 0 nor infinite in the solver's float32."""
    return number(text, "a rate from 1e-30 to 1e30", 1e-30, 1e30)


def run(options: Namespace) -> int:
    from dataclasses import asdict
    from functools import partial
    from pathlib import Path

    from engine.errors import ConfigError
    from engine.verbs.runtime import asked_solver, show, start, write_json

    if not options.lowest < options.highest:
        raise ConfigError(f"--from and --to: expected a rising range, got {options.lowest:g} to {options.highest:g}")
    if options.iterations < 5:
        raise ConfigError(f"--iterations: expected 5 or more, got {options.iterations}")
    world = start(output=options.json, reading=options)
    from engine.data.feeder import Feeder
    from engine.examine import rates
    from engine.files import check_writable
    from engine.report.plot import KINDS

    config = asked_solver(options, also=[rates.table_of(options.output)] if options.output else [])
    if options.output:
        if Path(options.output).suffix not in KINDS:
            raise ConfigError(f"--output: expected a name that ends with {', '.join(KINDS)}, got {options.output}")
        if world.rank == 0:
            check_writable(options.output)
            check_writable(rates.table_of(options.output))
    weights = options.weights or list(config.message.weights)
    make_feeder = partial(Feeder, skip_bad_images=options.skip_bad_images)
    span = options.lowest, options.highest
    found = rates.find_rates(config, world, weights, *span, options.iterations, make_feeder)
    if world.rank == 0:
        show(rates.describe(found), options.json)
        if options.output:
            rates.write(found, options.output, config.path)
        if options.json:
            points = {"steepest": found.steepest, "lowest": found.lowest if found.rates else None}
            report = {"suggestion": found.suggestion, **points, **asdict(found)}
            write_json(report, options.json)
    return 0
