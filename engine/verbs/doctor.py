"""Runs only the checks that training makes before its first iteration: compares the ranks' versions and, with --solver,
their solvers, nets, parameter layouts and data; checks an allreduce whose result is known; measures the link. A
difference ends it with status 1 and a line that names two ranks and what differs; only layouts may differ, with the
processors: training then keeps plain ones.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from engine.verbs.options import OF_RUNS, add_json, add_running, add_skip

ORDER = 80
RANKS = True
SUMMARY = "check that the ranks fit together; show who runs on which cores, and the measured link"
EXAMPLES = [
    "engine doctor",
    "mpiexec -n 4 engine doctor",
    "srun engine doctor --solver solvers/paper/448nodes.prototxt",
]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--solver", metavar="A,B", help="a solver, or several in a row: check nets, data and comm_param, too"
    )
    add_skip(parser)
    add_json(parser)
    add_running(parser)


def run(options: Namespace) -> int:
    from engine.verbs.runtime import asked_solvers, refuse_idle, show, start, write_json

    if not options.solver:
        refuse_idle(options, ("--skip_bad_images", *OF_RUNS), "without --solver")
    world = start(output=options.json, reading=options)
    from engine.examine.doctor import doctor, to_text

    configs = asked_solvers(options) if options.solver else []
    found = doctor(world, configs, skip_bad_images=options.skip_bad_images)
    if world.rank == 0:
        show(to_text(found), options.json)
        if options.json:
            write_json(found, options.json)
    return 0
