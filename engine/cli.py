"""The command line: verbs that parse arguments, call and report. The only place that exits, and that prints errors.

Everything heavy is imported by the verb that needs it, so that --help stays quick.
"""

from __future__ import annotations

import os
import sys
import traceback
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from engine.arguments import parse
from engine.errors import CommError, ConfigError, EngineError
from engine.tools.verbs import VERBS as TOOLS

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


# Ends


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
    from engine.comm.launch import is_spokesman

    if is_spokesman():
        print(message, file=sys.stderr, flush=True)
        _close_world()
    return status


# Verbs


def _start(watched: bool = False, output: str | None = None) -> Any:
    """The world of ranks, each with its share of the cores, and the log on rank 0. watched: by the watchdog. output: a
    file that rank 0 is to write in the end ("-": none). Raises EngineError where it cannot."""
    from engine.comm.settings import watchdog_seconds
    from engine.comm.world import world
    from engine.cores import limit_spinning, share_cores
    from engine.files import check_writable
    from engine.report.log import set_up

    limit_spinning()
    ranks = world()
    if watched:
        ranks.watch(watchdog_seconds())
    set_up(ranks.rank)
    share_cores(ranks)
    if ranks.rank == 0 and output not in (None, "-"):
        check_writable(output)
    return ranks


def train(options: Namespace) -> int:
    if options.ranks or options.max_restarts:
        from engine.supervise import supervise

        return supervise(options.arguments, options.ranks or 1, options.max_restarts)
    if options.watchdog is not None:
        os.environ["ENGINE_WATCHDOG"] = options.watchdog
    world = _start(watched=True, output=options.timeline)
    from engine.comm.settings import watchdog_seconds
    from engine.preflight import preflight, texts_of
    from engine.solver.resume import resume
    from engine.solver.signals import Signals
    from engine.solver.solver import Solver
    from engine.solver.validate import check_snapshots

    config = _read_solver(options)
    message = config.message
    if world.rank == 0:  # which writes
        check_snapshots(message, config.path, config.where(path="snapshot_prefix"))
    preflight(world, texts_of(config))
    world.watch(watchdog_seconds(message.comm_param, where=config.where(path="comm_param")))
    snapshot = options.snapshot
    if options.resume:
        snapshot = resume(config, world, float(os.environ.get("ENGINE_RESUME_SINCE", 0))) or snapshot
    timeline = None
    if options.timeline:
        from engine.report.timeline import Timeline

        timeline = Timeline(options.timeline)
    signals = Signals(options.sigint_effect, options.sighup_effect)
    solver = Solver(
        config,
        world,
        signals=signals,
        timeline=timeline,
        layer_times=options.layer_times,
        skip_bad_images=options.skip_bad_images,
    )
    weights = options.weights or list(message.weights)
    if snapshot:
        solver.restore(snapshot)
    elif weights:
        solver.load_weights(weights)
    solver.solve()
    solver.close()
    return 0


def _read_solver(options: Namespace):
    """The solver of --solver as the options change it."""
    from engine.config import read_solver

    config = read_solver(options.solver, options.set)
    message = config.message
    if options.precision:
        message.precision = message.Precision.Value(options.precision.upper())
    if getattr(options, "memory_budget", None):
        message.memory_budget_mb = options.memory_budget / 1e6
    if options.level is not None:
        message.train_state.level = options.level
    message.train_state.stage.extend(options.stage)
    return config


def _read_model(options: Namespace, phase: int):
    """The net of --model in the state that the options ask for."""
    from engine.config import read_net

    config = read_net(options.model, options.set)
    state = config.message.state
    state.phase = phase
    if options.level is not None:
        state.level = options.level
    state.stage.extend(options.stage)
    return config


def _phase(name: str) -> int:
    from engine import proto

    return {"TRAIN": proto.TRAIN, "TEST": proto.TEST}[name]


def test(options: Namespace) -> int:
    world = _start(output=options.json)
    from engine.evaluate import Evaluator
    from engine.precision import usable_precision
    from engine.report.log import log
    from engine.report.metrics import elements, loss_note
    from engine.weights import read_caffemodel

    config = _read_model(options, _phase("TEST"))
    precision = usable_precision(options.precision or "fp32", world)
    evaluator = Evaluator(config, world=world, skip_bad_images=options.skip_bad_images, precision=precision)
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
        _write_json({name: value.tolist() for name, value in values.items()}, options.json)
    return 0


def _report_skipped(skipped: dict[str, str], log: Callable[[str], None]) -> None:
    if skipped:
        log(f"Skipped {len(skipped)} images that could not be decoded: {', '.join(list(skipped)[:3])}")


def time_(options: Namespace) -> int:
    world = _start(output=options.json)
    from engine.benchmark import benchmark, to_json, to_text
    from engine.precision import usable_precision

    phase = _phase(options.phase)
    precision = usable_precision(options.precision or "fp32", world)
    config = _read_model(options, phase)
    times = benchmark(config, phase, options.iterations, world, precision, options.memory_budget)
    if world.rank == 0:
        print(to_text(times))
        if options.json:
            _write_json(to_json(times), options.json)
    return 0


def verify(options: Namespace) -> int:
    from engine.comm.launch import detect, run_ranks

    launch = detect()
    if 1 in (options.ranks, launch and launch.size):
        raise ConfigError("one rank has nobody to be compared with: --ranks 2 or more")
    if launch is None:
        if not options.ranks:
            raise ConfigError("how many ranks? --ranks N, or start it with mpiexec or srun")
        return run_ranks(options.ranks, options.arguments)
    if options.ranks not in (None, launch.size):
        raise ConfigError(f"--ranks {options.ranks}, but {launch.launcher} has started {launch.size}")
    world = _start()
    from engine.verify import verify

    verify(lambda: _read_solver(options), world, options.iterations, options.tolerance)
    return 0


def predict(options: Namespace) -> int:
    world = _start(output=options.json)
    from engine import predict

    if (options.latency is None) != (options.bandwidth is None):
        raise ConfigError("--latency and --bandwidth go together")
    if options.bandwidth is None and world.size == 1:
        raise ConfigError("which network? --latency and --bandwidth, or start it with mpiexec to measure")
    if not (options.model or options.profile):
        raise ConfigError("--model or --profile is needed")
    param = predict.comm_param(options.comm)
    if options.bandwidth is None:
        network = predict.measured_network(world)
    else:
        network = predict.given_network(options.latency, options.bandwidth, options.ranks_per_node, options.cores)
    profile = _profile(options, world)
    found = [predict.predict(profile, network, count, param) for count in options.ranks]
    if world.rank == 0:
        print(predict.to_text(profile, network, found))
        if options.json:
            _write_json(predict.to_dict(profile, network, found), options.json)
    return 0


def _profile(options: Namespace, world):
    """Of the machine that engine predict is asked about."""
    from engine import predict

    if options.profile:
        profile = predict.read_profile(options.profile)
    else:
        config = _read_model(options, _phase("TRAIN"))
        if options.images_per_second:
            profile = predict.from_flops(config, options.batch or 0)
        else:
            profile = predict.own_profile(config, options.iterations, options.precision or "fp32", world)
    if options.batch:
        profile = profile.at_batch(options.batch)
    return profile.at_rate(options.images_per_second) if options.images_per_second else profile


def check(options: Namespace) -> int:
    from engine.check import check_file, files_below, raise_errors, to_json, to_text

    paths = files_below(options.files)
    if options.run:
        return _check_run(options, paths)
    reports = [check_file(path, options.set, options.level or 0, options.stage) for path in paths]
    if options.json:
        _write_json({"files": [to_json(report) for report in reports]}, "-")
    else:
        print("\n\n".join(to_text(report) for report in reports))
    raise_errors(reports)
    return 0


def _check_run(options: Namespace, paths: list[str]) -> int:
    from engine.trials import check_and_run, line_of, summary

    rows = []
    for row in check_and_run(paths, options.set, options.level or 0, options.stage):
        rows.append(row)
        if not options.json:
            print(line_of(row), flush=True)
    if options.json:
        _write_json({"runs": [asdict(row) for row in rows]}, "-")
    else:
        print(summary(rows))
    return 1 if any(row.reason for row in rows) else 0


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


def device_query(options: Namespace) -> int:
    from engine.device import device, to_text

    found = device()
    if options.json:
        _write_json(found, "-")
    else:
        print(to_text(found))
    return 0


def doctor(options: Namespace) -> int:
    world = _start(output=options.json)
    from engine.doctor import doctor, to_text

    found = doctor(world, options.solver, options.set)
    if world.rank == 0:
        print(to_text(found))
        if options.json:
            _write_json(found, options.json)
    return 0


def _write_json(value: Any, path: str) -> None:
    """To a file, or to the standard output for "-"."""
    import json

    text = json.dumps(value, indent=1)
    if path == "-":
        print(text)
        return
    from engine.files import atomic_write

    with atomic_write(path) as file:
        file.write(text.encode() + b"\n")


VERBS = {
    "train": train,
    "test": test,
    "time": time_,
    "verify": verify,
    "predict": predict,
    "check": check,
    "convert_imageset": convert_imageset,
    "compute_image_mean": compute_image_mean,
    "device_query": device_query,
    "doctor": doctor,
    **TOOLS,
}

if __name__ == "__main__":
    sys.exit(main())
