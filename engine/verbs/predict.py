"""Simulates training steps on a network of given latency and bandwidth, from the layer times of one rank: measured
here, read from a --profile, or scaled to the --images_per_second of another machine. Under mpiexec, a network that is
not given is measured. Prints step time, efficiency, exposed communication, and the best bucket size and number of
servers, and with --epochs the minutes of a whole training.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from engine.verbs.options import OF_RUNS, add_json, add_running, number, positive, positives

ORDER = 50
RANKS = True
MOST = 1e12  # the largest figure, and its inverse the smallest above 0: others would make tables unreadable
SUMMARY = "predict how fast a net would train on more ranks, or on another network"
EXAMPLES = [
    "engine predict --model nets/resnet50.prototxt --ranks 2,4,8,16 --latency 1.5 --bandwidth 100",
    "engine predict --model nets/resnet50.prototxt --ranks 256 --images_per_second 60 --latency 1 --bandwidth 100",
    "engine predict --model nets/resnet50.prototxt --ranks 1536 --batch 32 --images_per_second 68 --latency 1 "
    "--bandwidth 100 --variation 12 --epochs 100 --dataset_size 1281167",
    "mpiexec -n 2 engine predict --profile times.json --ranks 2,64",
]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--model", metavar="FILE", help="the net, a prototxt, where there is no --profile")
    parser.add_argument("--profile", metavar="FILE", help="what engine time --json wrote (default: measured now)")
    parser.add_argument(
        "--ranks", type=positives, required=True, metavar="A,B", help="numbers of ranks; a row for one rank comes first"
    )
    parser.add_argument(
        "--batch", type=positive, metavar="N", help="batch per rank (default: the profile's, or the net's)"
    )
    parser.add_argument("--images_per_second", type=figure, metavar="X", help="speed of one rank on another machine")
    parser.add_argument(
        "--latency", type=from_zero, metavar="US", help="latency of a message between nodes, microseconds"
    )
    parser.add_argument("--bandwidth", type=figure, metavar="GBIT", help="bandwidth of a node, each way, Gbit/s")
    parser.add_argument("--ranks_per_node", type=positive, default=1, metavar="N", help="default: 1")
    parser.add_argument("--cores", type=figure, metavar="N", help="cores of a node (default: those that compute)")
    parser.add_argument(
        "--iterations", type=positive, default=5, metavar="N", help="timed iterations of the profile (default: 5)"
    )
    parser.add_argument(
        "--variation",
        type=variation,
        default=0.0,
        metavar="PERCENT",
        help="standard deviation of a rank's steps, in percent of their mean: a step takes as long as that of the "
        "slowest; or 'measured': that of the profile (default: 0)",
    )
    parser.add_argument(
        "--epochs", type=figure, metavar="N", help="also print the minutes of so many epochs (--dataset_size)"
    )
    parser.add_argument("--dataset_size", type=positive, metavar="N", help="images of an epoch")
    parser.add_argument("--comm", default="", metavar="FIELDS", help="fields of comm_param: 'servers: 4 bucket_mb: 8'")
    add_json(parser)
    add_running(parser)


def figure(text: str, least: float = 1 / MOST) -> float:
    return number(text, f"a number from {least:g} to {MOST:g}", least, MOST)


def from_zero(text: str) -> float:
    return figure(text, 0.0)


def variation(text: str) -> float | None:
    """Returns percent; None for "measured"."""
    return None if text == "measured" else number(text, f"a percentage from 0 to {MOST:g}, or 'measured'", 0.0, MOST)


def run(options: Namespace) -> int:
    from engine.errors import ConfigError
    from engine.verbs.runtime import refuse_idle, show, start, write_json

    world = start(output=options.json, reading=options)
    from engine.predict import predict

    link = options.latency, options.bandwidth
    if (options.latency is None) != (options.bandwidth is None):
        raise ConfigError("--latency and --bandwidth go together")
    if options.bandwidth is None and world.size == 1:
        raise ConfigError("which network? give --latency and --bandwidth, or start with mpiexec to measure it")
    if not (options.model or options.profile):
        raise ConfigError("--model or --profile is needed")
    if (options.epochs is None) != (options.dataset_size is None):
        raise ConfigError("--epochs and --dataset_size go together")
    if options.bandwidth is None:
        refuse_idle(options, ("--ranks_per_node", "--cores"), "where the network is measured")
    if options.profile:
        refuse_idle(options, ("--model", "--iterations", *OF_RUNS), "with --profile")
    elif options.images_per_second:
        refuse_idle(options, ("--iterations", "--precision"), "with --images_per_second: nothing is measured")
    images = options.epochs * options.dataset_size if options.epochs else 0.0
    param = predict.comm_param(options.comm)
    network = predict.measured_network(world) if options.bandwidth is None else None
    profile = _profile(options, world)
    if network is None:
        cores = options.cores or profile.threads * options.ranks_per_node
        network = predict.given_network(*link, options.ranks_per_node, cores)
    varying = profile.variation if options.variation is None else options.variation / 100
    if varying is None:
        raise ConfigError("--variation measured: no variation of steps was measured; give a percentage")
    counts = dict.fromkeys([1, *options.ranks])  # efficiencies are of one rank
    found = [predict.predict(profile, network, count, param, varying) for count in counts]
    if world.rank == 0:
        show(predict.to_text(profile, network, found, images), options.json)
        if options.json:
            write_json(predict.to_dict(profile, network, found, images), options.json)
    return 0


def _profile(options: Namespace, world):
    """Returns the profile that the prediction starts from: read, measured, or made of FLOPs."""
    from engine.comm.precision import usable_precision
    from engine.predict import predict
    from engine.verbs.runtime import asked_model, phase_of

    if options.profile:
        profile = predict.read_profile(options.profile)
    else:
        config = asked_model(options, phase_of("TRAIN"))
        if options.images_per_second:
            profile = predict.from_flops(config, options.batch or 0)
        else:
            precision = usable_precision(options.precision or "fp32", world)
            profile = predict.own_profile(config, options.iterations, precision, world)
    if options.batch:
        profile = profile.at_batch(options.batch)
    return profile.at_rate(options.images_per_second) if options.images_per_second else profile
