"""Runs a net in phase TEST and prints the averages of its outputs: over the whole test set, each sample exactly once,
or over --iterations batches. Under mpiexec the ranks share the batches; the results stay the same.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from engine.verbs.options import add_running, add_skip, comma_separated, positive

ORDER = 20
SUMMARY = "score a net with given weights"
EXAMPLES = [
    "engine test --model nets/digits.prototxt --weights examples/digits/digits_iter_600.caffemodel",
    "engine test --model net.prototxt --weights net.caffemodel --iterations 100",
]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--model", required=True, metavar="FILE", help="the net, a prototxt")
    parser.add_argument(
        "--weights",
        type=comma_separated,
        required=True,
        metavar="A,B",
        help=".caffemodel files, matched by layer name; later ones take the place of earlier ones, layer by layer",
    )
    parser.add_argument(
        "--iterations", type=positive, metavar="N", help="batches to run (default: the whole set, once)"
    )
    parser.add_argument("--json", metavar="FILE", help="also write the averages as JSON ('-': standard output)")
    add_skip(parser)
    add_running(parser)


def run(options: Namespace) -> int:
    from functools import partial

    from engine.verbs.runtime import asked_model, log_skipped, phase_of, start, write_json

    world = start(output=options.json)
    from engine.comm.precision import usable_precision
    from engine.data.feeder import Feeder
    from engine.inference.evaluator import Evaluator
    from engine.inference.trained import load
    from engine.net import NetOptions
    from engine.report.log import log
    from engine.report.metrics import elements, loss_note

    config = asked_model(options, phase_of("TEST"))
    precision = usable_precision(options.precision or "fp32", world)
    feeder = partial(Feeder, skip_bad_images=options.skip_bad_images)
    evaluator = Evaluator(config, world, NetOptions(precision=precision), feeder=feeder)
    load(evaluator.net, options.weights)
    log(
        f"Running for {options.iterations} iterations."
        if options.iterations
        else f"Testing all {evaluator.feeder.size} samples."
    )

    def on_batch(k: int, outputs) -> None:
        for name, value in elements(outputs):
            log(f"Batch {k}, {name} = {value:g}")

    values = evaluator.run(options.iterations, on_batch)
    weights = evaluator.loss_weights
    log(f"Loss: {sum(weights.get(name, 0.0) * value for name, value in elements(values)):g}")
    for name, value in elements(values):
        log(f"{name} = {value:g}{loss_note(weights.get(name, 0.0), value)}")
    log_skipped(evaluator.feeder.skipped)
    evaluator.close()
    if options.json and world.rank == 0:
        write_json({name: value.tolist() for name, value in values.items()}, options.json)
    return 0
