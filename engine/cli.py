"""The command line: each verb parses its arguments, calls, and reports. The only place that exits or prints errors.

Everything heavy is imported by the verb that needs it, so that --help stays quick.
"""

from __future__ import annotations

import os
import sys
import traceback
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial

from engine.errors import CommError, ConfigError, EngineError
from engine.verbs.arguments import parse
from engine.verbs.examine_verbs import VERBS as EXAMINE
from engine.verbs.runtime import asked_model, asked_solver, phase_of, start, write_json
from engine.verbs.tools_verbs import VERBS as TOOLS

RANKS_FAILED = 3  # another attempt may succeed
INTERRUPTED = 130  # the shell's status of a process that SIGINT ended


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `engine VERB ...`; returns its exit status: 0, 1 for an error, 2 for wrong usage, 3 where ranks or their
    communication fail in training, 130 when interrupted."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    try:
        status = VERBS[options.verb](options)
        sys.stdout.flush()
        _close_world()
        return status
    except BrokenPipeError:  # as in `engine check net.prototxt | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except EngineError as error:
        own = "" if isinstance(error, ConfigError) else _rank_note()
        met = options.verb == "train" and isinstance(error, CommError) and _ranks() is not None  # the ranks did meet
        status = RANKS_FAILED if met else 1
        return _fail("\n".join(f"engine: {own}{line}" for line in str(error).splitlines()), status)
    except Exception:
        request = "this is a defect of engine; please report it with the lines above"
        return _fail(f"{traceback.format_exc()}engine: {_rank_note()}{request}")


def _ranks():
    """The world if it was made, else None."""
    module = sys.modules.get("engine.comm.world")
    return module.world() if module and module.world.cache_info().currsize else None


def _rank_note() -> str:
    world = _ranks()
    return f"[rank {world.rank}] " if world and world.size > 1 else ""


def _close_world() -> None:
    world = _ranks()
    if world:
        world.close()


def _fail(message: str, status: int = 1) -> int:
    """Prints the message once and ends every rank."""
    sys.stdout.flush()
    world = _ranks()
    if world and world.size > 1:
        world.abort(message, status)
    from engine.host.launch import is_spokesman

    if is_spokesman():
        print(message, file=sys.stderr, flush=True)
        _close_world()
    return status


# Verbs


def train(options: Namespace) -> int:
    if options.ranks or options.max_restarts:
        from engine.watchdog.supervise import supervise

        return supervise(options.arguments, options.ranks or 1, options.max_restarts)
    if options.watchdog is not None:
        os.environ["ENGINE_WATCHDOG"] = options.watchdog
    world = start(watched=True, output=options.timeline)
    from engine.comm.preflight import preflight
    from engine.comm.settings import watchdog_seconds
    from engine.config.config import texts_of
    from engine.report.display import TrainingBar
    from engine.report.layer_times import LayerTimes
    from engine.report.observer import Observer
    from engine.report.timeline import Timeline
    from engine.solver.resume import resume
    from engine.solver.signals import Signals
    from engine.solver.solver import Solver
    from engine.solver.validate import check_snapshots

    config = asked_solver(options)
    message = config.message
    if world.rank == 0:  # which writes
        check_snapshots(message, config.path, config.where(path="snapshot_prefix"))
    preflight(world, texts_of(config))
    world.watch(watchdog_seconds(message.comm_param, where=config.where(path="comm_param")))
    snapshot = options.snapshot
    if options.resume:
        snapshot = resume(config, world, float(os.environ.get("ENGINE_RESUME_SINCE", 0))) or snapshot
    observers: list[Observer] = [TrainingBar()]
    if options.layer_times:
        observers.append(LayerTimes())
    if options.timeline:
        observers.append(Timeline(options.timeline))
    solver = Solver(
        config,
        world,
        signals=Signals(options.sigint_effect, options.sighup_effect),
        observers=observers,
        skip_bad_images=options.skip_bad_images,
    )
    if snapshot:
        solver.restore(snapshot)
    elif weights := options.weights or list(message.weights):
        solver.load_weights(weights)
    solver.solve()
    solver.close()
    return 0


def test(options: Namespace) -> int:
    world = start(output=options.json)
    from engine.comm.precision import usable_precision
    from engine.data.feeder import Feeder
    from engine.inference.evaluator import Evaluator
    from engine.net import NetOptions
    from engine.report.log import log
    from engine.report.metrics import elements, loss_note
    from engine.weights import read_caffemodel

    config = asked_model(options, phase_of("TEST"))
    precision = usable_precision(options.precision or "fp32", world)
    feeder = partial(Feeder, skip_bad_images=options.skip_bad_images)
    evaluator = Evaluator(config, world, NetOptions(precision=precision), feeder=feeder)
    for path in options.weights:
        for layer in evaluator.net.load_weights(read_caffemodel(path), path):
            log(f"Layer {layer} is not in {path}: it keeps its initial values")
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
    _report_skipped(evaluator.feeder.skipped, log)
    evaluator.close()
    if options.json and world.rank == 0:
        write_json({name: value.tolist() for name, value in values.items()}, options.json)
    return 0


def _report_skipped(skipped: dict[str, str], log: Callable[[str], None]) -> None:
    if skipped:
        log(f"Skipped {len(skipped)} images that could not be decoded: {', '.join(list(skipped)[:3])}")


def convert_imageset(options: Namespace) -> int:
    from engine.data.convert_imageset import convert_imageset
    from engine.report.log import log, set_up
    from engine.report.progress import Progress

    *lists, db = options.paths
    if len(lists) > 1:
        raise ConfigError(f"expected ROOT [LIST] DB, got {len(options.paths) + 1} names")
    set_up()
    with Progress("Converting", line="Processed {done} of {total} files.") as progress:
        done = convert_imageset(
            options.root,
            lists[0] if lists else None,
            db,
            shuffle=options.shuffle,
            seed=options.seed,
            resize_height=options.resize_height,
            resize_width=options.resize_width,
            gray=options.gray,
            encoded=options.encoded,
            encode_type=options.encode_type,
            skip_bad_images=options.skip_bad_images,
            progress=progress.update,
        )
    _report_skipped(done.skipped, log)
    log(f"Wrote {done.images} images to {db}")
    return 0


def compute_image_mean(options: Namespace) -> int:
    from engine.data.compute_image_mean import compute_image_mean
    from engine.report.log import log, set_up
    from engine.report.progress import Progress

    set_up()
    with Progress("Averaging", line="Processed {done} of {total} files.") as progress:
        mean = compute_image_mean(options.db, options.out, progress=progress.update)
    if options.out:
        log(f"Write to {options.out}")
    log(f"Number of channels: {mean.shape[0]}")
    for channel, value in enumerate(mean.mean(axis=(1, 2))):
        log(f"mean_value channel [{channel}]: {value:g}")
    return 0


VERBS = {
    "train": train,
    "test": test,
    **EXAMINE,
    "convert_imageset": convert_imageset,
    "compute_image_mean": compute_image_mean,
    **TOOLS,
}
