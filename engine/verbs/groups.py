"""Divides the ranks of one job into groups that run side by side, each with a verb of its own: two trainings on two
halves of an allocation, or a test beside a training. Each group runs as `mpiexec -n RANKS engine VERB` would: its ranks
are counted from 0, gradients are reduced among them, its rank 0 writes the log. All ranks of a host divide its cores
and memory. The job ends when the last group has ended; an error in one group ends all.
"""

from __future__ import annotations

from argparse import REMAINDER, ArgumentParser, Namespace

ORDER = 85
RANKS = True
SUMMARY = "run several verbs side by side, on groups of ranks of one job"
EXAMPLES = [
    "engine groups 1 train --solver a.prototxt + 1 train --solver b.prototxt",
    "mpiexec -n 4 engine groups 2 train --solver a.prototxt + 2 train --solver b.prototxt",
    "srun engine groups 126 train --solver s.prototxt + 2 test --model net.prototxt --weights a.caffemodel",
]


def add_arguments(parser: ArgumentParser) -> None:
    what = "for each group, with a + between them"
    parser.add_argument("programs", nargs=REMAINDER, metavar="RANKS VERB ...", help=what)


def run(options: Namespace) -> int:
    import os

    from engine.errors import ConfigError
    from engine.host.launch import GROUPS, detect
    from engine.verbs import command_line
    from engine.watchdog.supervise import run_ranks

    counts, programs = divided(options.programs)
    parsed = [command_line.parse(program) for program in programs]  # all of them: every rank meets the same error
    launch, mine = detect(), parsed[0]
    if any(each.verb == "groups" for each in parsed) or (launch and launch.size < launch.job_size):
        raise ConfigError("groups: a group cannot be divided again")
    if launch is None and sum(counts) > 1:
        return run_ranks(sum(counts), options.arguments)
    if launch is not None:
        if sum(counts) != launch.job_size:
            raise ConfigError(f"groups: {sum(counts)} ranks are asked for, {launch.job_size} were started")
        os.environ[GROUPS] = ",".join(map(str, counts))
        launch = detect()
        assert launch
        first = [sum(counts[:index]) for index in range(len(counts))]
        mine = parsed[first.index(launch.first)]
    options.verb = mine.verb  # errors are this verb's
    return command_line.run(mine)


def divided(words: list[str]) -> tuple[list[int], list[list[str]]]:
    """Returns the numbers of ranks, and the command lines, of the groups. Raises ConfigError."""
    from engine.errors import ConfigError

    counts, programs, group = [], [], []
    for word in [*words, "+"]:
        if word != "+":
            group.append(word)
            continue
        if len(group) < 2 or not group[0].isascii() or not group[0].isdigit() or not 0 < int(group[0][:10]) < 2**31:
            raise ConfigError(
                f"groups: expected RANKS VERB ... for group {len(counts) + 1}, got '{' '.join(group)}'; such as: "
                "engine groups 2 train --solver a.prototxt + 2 test --model b.prototxt --weights b.caffemodel"
            )
        counts.append(int(group[0]))
        programs.append(group[1:])
        group = []
    return counts, programs
