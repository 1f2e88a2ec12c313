"""Runs a net in phase TEST and prints the averages of its outputs: over the whole test set, each sample exactly once,
or over --iterations batches. Under mpiexec the ranks share the batches; the results stay the same.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from engine.verbs.options import add_kernels, add_running, add_skip, comma_separated, positive

if TYPE_CHECKING:
    from engine.comm.world import World
    from engine.config import NetConfig
    from engine.inference.evaluator import Evaluator, Outputs
    from engine.inference.judges import Judges

ORDER = 20
RANKS = True
SUMMARY = "score a net, or an ensemble, with given weights"
EXAMPLES = [
    "engine test --model nets/digits.prototxt --weights examples/digits/digits_iter_600.caffemodel",
    "engine test --model net.prototxt --weights net.caffemodel --iterations 100",
    "engine test --model net.prototxt --weights a.caffemodel,b.caffemodel,c.caffemodel --ensemble",
    "engine test --model net.prototxt --weights net.caffemodel --crops 10",
    "engine test --model net.prototxt --weights net_best.caffemodel --report report",
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
        "--ensemble",
        action="store_true",
        help="each file is a member: score each, and the average of their probabilities, in one pass over the data",
    )
    parser.add_argument(
        "--crops",
        type=int,
        choices=[5, 10],
        default=1,
        help="average the probabilities over 5 crops of each picture (corners and centre), or also their mirror images "
        "(default: the centre)",
    )
    parser.add_argument(
        "--flip", action="store_true", help="average the probabilities over each picture and its mirror image"
    )
    parser.add_argument(
        "--iterations", type=positive, metavar="N", help="batches to run (default: the whole set, once)"
    )
    parser.add_argument("--json", metavar="FILE", help="also write the averages as JSON ('-': standard output)")
    parser.add_argument(
        "--report",
        metavar="DIR",
        help="also write accuracy by class and confusion matrix, ROC of labels, IoU, average precision: JSON, CSV, "
        "pictures",
    )
    parser.add_argument(
        "--ap_version",
        choices=["11point", "MaxIntegral", "Integral", "101point"],
        default="Integral",
        help="how a detector's average precision is computed: as VOC 2007 (11point), VOC 2010 (MaxIntegral) or COCO "
        "(101point) do, or the plain area under the curve (default: Integral)",
    )
    add_skip(parser)
    add_kernels(parser)
    add_running(parser)


def run(options: Namespace) -> int:
    from pathlib import Path

    from engine.errors import ConfigError, EngineError
    from engine.verbs.runtime import asked_model, check_outputs, log_skipped, phase_of, start, write_json

    if options.ensemble and len(options.weights) < 2:
        raise ConfigError(f"--ensemble: expected two files or more in --weights, got {len(options.weights)}")
    world = start(output=options.json, reading=options)
    from engine.report.log import log
    from engine.report.metrics import elements, loss_note

    config = asked_model(options, phase_of("TEST"))
    report = None
    if options.report:
        from engine.inference.judges import scored_blobs
        from engine.report.scorecard import Scorecard

        if world.rank == 0:
            report = Scorecard(options.report)
            try:
                check_outputs(options, config, report.older(scored_blobs(config.message)))
            except EngineError as error:
                name = Path(error.where or "").name
                raise EngineError(
                    f"--report {options.report}: would replace {name}, which the net reads; choose another folder"
                ) from None
    evaluator = _evaluator(options, config, world)
    judges = _judges(evaluator, config) if options.report else None
    size = evaluator.feeder.size_of_all()
    if options.iterations or size:  # else run() raises an error
        log(f"Running for {options.iterations} iterations." if options.iterations else f"Testing all {size} samples.")

    def on_batch(k: int, outputs: Outputs) -> None:
        for name, value in elements(outputs):
            log(f"Batch {k}, {name} = {value:g}")

    values = evaluator.run(options.iterations, None if options.ensemble else on_batch)
    found: object = {name: value.tolist() for name, value in values.items()}
    if options.ensemble:
        from engine.inference.ensemble import average, by_member, to_table

        found = by_member(options.weights, values)
        log(to_table(options.weights, values))
        values = average(len(options.weights), values)
    weights = evaluator.loss_weights
    if weights.keys() - values.keys():
        log("Loss: not told, as not every loss is an output; give each a top that no layer reads")
    else:
        log(f"Loss: {sum(weights.get(name, 0.0) * value for name, value in elements(values)):g}")
    for name, value in elements(values):
        log(f"{name} = {value:g}{loss_note(weights.get(name, 0.0), value)}")
    skipped = world.gather(evaluator.feeder.skipped) or []
    log_skipped([key for key, _ in {item: found for each in skipped for item, found in each.items()}.values()])
    found_by = judges.gather(world) if judges else []
    if judges and report:
        from engine.inference.report import write_report

        write_report(report, config, evaluator, values, judges, found_by)
    evaluator.close()
    if options.json and world.rank == 0:
        write_json(found, options.json)
    return 0


def _judges(evaluator: Evaluator, config: NetConfig) -> Judges:
    """Returns the judges, which see every sample of the test, for the report. Raises ConfigError if nothing can be
    reported."""
    from engine.inference.judges import Judges, require_judges
    from engine.report.log import log

    judges = Judges(evaluator.scoring_net, log)
    require_judges(judges, bool(evaluator.detectors), config.path)
    evaluator.on_forward = judges.watch
    return judges


def _evaluator(options: Namespace, config: NetConfig, world: World) -> Evaluator:
    """Returns an Evaluator of the net with its weights, or an Ensemble if members or views are to be averaged."""
    from functools import partial

    from engine.comm.precision import usable_precision
    from engine.data.feeder import Feeder
    from engine.inference.ensemble import Ensemble
    from engine.inference.evaluator import Evaluator
    from engine.inference.trained import load
    from engine.inference.views import Views
    from engine.net import NetOptions
    from engine.net.kernel_table import Kernels
    from engine.report.log import log
    from engine.verbs.runtime import refuse_idle

    net = NetOptions(precision=usable_precision(options.precision or "fp32", world), keep_all=bool(options.report))
    kernels = Kernels(options.kernels or "default", say=log)
    make_feeder = partial(Feeder, skip_bad_images=options.skip_bad_images)
    views = Views(config, options.crops, options.flip)
    if not options.ensemble and views.count == 1:
        evaluator = Evaluator(
            config, world, net, make_feeder=make_feeder, ap_version=options.ap_version, kernels=kernels
        )
        if not evaluator.detectors:
            refuse_idle(options, ("--ap_version",), "on a net without a detector")
        load(evaluator.net, options.weights)
        return evaluator
    refuse_idle(options, ("--ap_version",), "with --ensemble, --crops or --flip")
    if views.count > 1:
        log(f"Averaging probabilities over {views.describe()}.")
    members = [[path] for path in options.weights] if options.ensemble else [options.weights]
    return Ensemble(config, members, world, net, views=views, make_feeder=make_feeder, kernels=kernels)
