"""The verbs of engine/examine as the command line calls them: each takes its options and returns an exit status."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict

from engine.errors import ConfigError
from engine.verbs.runtime import asked_model, asked_solver, phase_of, start, write_json


def time_(options: Namespace) -> int:
    world = start(output=options.json)
    from engine.comm.precision import usable_precision
    from engine.examine.benchmark import benchmark
    from engine.examine.times import to_json, to_text

    phase = phase_of(options.phase)
    precision = usable_precision(options.precision or "fp32", world)
    config = asked_model(options, phase)
    times = benchmark(config, phase, options.iterations, world, precision, options.memory_budget)
    if world.rank == 0:
        print(to_text(times))
        if options.json:
            write_json(to_json(times), options.json)
    return 0


def verify(options: Namespace) -> int:
    from engine.host.launch import detect, run_ranks

    launch = detect()
    if 1 in (options.ranks, launch and launch.size):
        raise ConfigError("nothing to compare one rank with: give --ranks 2 or more")
    if launch is None:
        if not options.ranks:
            raise ConfigError("how many ranks? give --ranks N, or start with mpiexec or srun")
        return run_ranks(options.ranks, options.arguments)
    if options.ranks not in (None, launch.size):
        raise ConfigError(f"--ranks {options.ranks}, but {launch.launcher} has started {launch.size}")
    world = start()
    from engine.examine.verify import verify

    verify(lambda: asked_solver(options), world, options.iterations, options.tolerance)
    return 0


def predict(options: Namespace) -> int:
    world = start(output=options.json)
    from engine.predict import predict

    if (options.latency is None) != (options.bandwidth is None):
        raise ConfigError("--latency and --bandwidth go together")
    if options.bandwidth is None and world.size == 1:
        raise ConfigError("which network? give --latency and --bandwidth, or start with mpiexec to measure it")
    if not (options.model or options.profile):
        raise ConfigError("--model or --profile is needed")
    param = predict.comm_param(options.comm)
    network = predict.measured_network(world) if options.bandwidth is None else None
    profile = _profile(options, world)
    if network is None:
        cores = options.cores or profile.threads * options.ranks_per_node
        network = predict.given_network(options.latency, options.bandwidth, options.ranks_per_node, cores)
    found = [predict.predict(profile, network, count, param) for count in options.ranks]
    if world.rank == 0:
        print(predict.to_text(profile, network, found))
        if options.json:
            write_json(predict.to_dict(profile, network, found), options.json)
    return 0


def _profile(options: Namespace, world):
    """The profile that `engine predict` starts from: read, measured, or scaled from FLOPs."""
    from engine.predict import predict

    if options.profile:
        profile = predict.read_profile(options.profile)
    else:
        config = asked_model(options, phase_of("TRAIN"))
        if options.images_per_second:
            profile = predict.from_flops(config, options.batch or 0)
        else:
            profile = predict.own_profile(config, options.iterations, options.precision or "fp32", world)
    if options.batch:
        profile = profile.at_batch(options.batch)
    return profile.at_rate(options.images_per_second) if options.images_per_second else profile


def check(options: Namespace) -> int:
    from engine.examine.check import check_file, files_below, raise_errors, to_json, to_text

    paths = files_below(options.files)
    if options.run:
        return _check_run(options, paths)
    reports = [check_file(path, options.set, options.level or 0, options.stage) for path in paths]
    if options.json:
        write_json({"files": [to_json(report) for report in reports]}, "-")
    else:
        print("\n\n".join(to_text(report) for report in reports))
    raise_errors(reports)
    return 0


def _check_run(options: Namespace, paths: list[str]) -> int:
    from engine.examine.check_run import check_and_run, line_of, summary

    rows = []
    for row in check_and_run(paths, options.set, options.level or 0, options.stage):
        rows.append(row)
        if not options.json:
            print(line_of(row), flush=True)
    if options.json:
        write_json({"runs": [asdict(row) for row in rows]}, "-")
    else:
        print(summary(rows))
    return 1 if any(row.reason for row in rows) else 0


def device_query(options: Namespace) -> int:
    from engine.examine.device import device, to_text

    found = device()
    if options.json:
        write_json(found, "-")
    else:
        print(to_text(found))
    return 0


def doctor(options: Namespace) -> int:
    world = start(output=options.json)
    from engine.examine.doctor import doctor, to_text

    found = doctor(world, options.solver, options.set)
    if world.rank == 0:
        print(to_text(found))
        if options.json:
            write_json(found, options.json)
    return 0


VERBS = {
    "time": time_,
    "verify": verify,
    "predict": predict,
    "check": check,
    "device_query": device_query,
    "doctor": doctor,
}
