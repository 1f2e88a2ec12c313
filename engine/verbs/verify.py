"""Trains on N ranks, which it starts itself, and on one rank that takes the batches of all of them in turn (with
bn_sync or recurrent layers, and of the two nets of adversarial training, at once), and compares all gradients and
weights after every iteration. If they differ, the first such layer is named and the exit status is 1.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from engine.verbs.options import above_zero, add_running, positive

ORDER = 40
RANKS = True
SUMMARY = "compare training on several ranks with training on one"
EXAMPLES = [
    "engine verify --solver solvers/digits.prototxt --ranks 2",
    "engine verify --solver solver.prototxt --ranks 4 --set comm_param.algorithm=HIERARCHICAL",
    "srun -n 64 engine verify --solver solver.prototxt --iterations 3",
]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--solver", required=True, metavar="FILE", help="the solver, a prototxt")
    parser.add_argument("--ranks", type=positive, metavar="N", help="ranks to start here (default: the launcher's)")
    parser.add_argument(
        "--iterations", type=positive, default=5, metavar="N", help="iterations to compare (default: 5)"
    )
    parser.add_argument(
        "--tolerance",
        type=above_zero,
        default=0.0,
        metavar="X",
        help="largest difference, relative to the parameter's largest element (default: 1e-4; 0.2 with bf16)",
    )
    add_running(parser)


def run(options: Namespace) -> int:
    from engine.errors import ConfigError
    from engine.host.launch import detect
    from engine.verbs.runtime import asked_solver, start
    from engine.watchdog.supervise import run_ranks

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
