#!/usr/bin/env python3
"""Compares what `comm_param { autotune: true }` chooses with settings that are given by hand, on rate-limited hosts.

    python tools/bench/autotune.py --netlab netlab --links 10gbit,1gbit,500mbit

For each link, two ranks of one thread, each on a host of its own, train with `autotune` until it has chosen. Then, in
each of --rounds, the same processes train some steps with every setting of a grid. The setting with the least median is
the best by hand. But the least of two dozen noisy medians is too low: so it is measured again, beside the chosen
settings and the defaults, in each of --finals, and only these figures count. comm.py explains `netlab`. With the link
"here", both ranks run on this host.

The columns are the milliseconds of a step of the slowest rank, as the median over the finals of medians over the steps
(for the worst of the grid: over the rounds), and the median over the finals of its ratio to the best by hand.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from comm import fed_net

if TYPE_CHECKING:
    from engine.comm.settings import CommSettings
    from engine.data.feeder import Feeder

ROOT = Path(__file__).resolve().parents[2]
GRID = {"bucket_mb": (1, 4, 16), "parts": (1, 4), "priority": (False, True), "servers": (1, 2)}
CHOSEN, DEFAULT = "chosen by autotune", "the defaults"


def by_hand(default: CommSettings) -> dict[str, CommSettings]:
    """Returns all settings of the grid, by their text. default: the settings for all fields that it does not have."""
    from engine.comm.search import as_text
    from engine.comm.settings import MB

    settings = {}
    for bucket_mb, parts, priority, servers in itertools.product(*GRID.values()):
        size = bucket_mb * MB
        fields = {"bucket_bytes": size, "chunk_bytes": size // parts, "priority": priority, "servers": servers}
        one = replace(default, **fields)
        settings[as_text(one)] = one
    return settings


def work(options: argparse.Namespace) -> None:
    """Trains as one of the ranks that a launcher has started. Rank 0 prints a line of JSON: what was chosen, the link,
    and the milliseconds of the grid and of the finals, by settings and round."""
    from engine.comm.search import as_text
    from engine.comm.world import world
    from engine.examine.benchmark import Training, step
    from engine.solver.tuner import TIMED, WARM_UP, Tuner

    ranks = world()
    net = fed_net(options, ranks.rank)
    training = Training(net, ranks)
    optimizer, count = training.optimizer, itertools.count()
    default = optimizer.strategy.settings
    # The input is in memory: nobody waits for data.
    tuner = Tuner(optimizer, cast("Feeder", SimpleNamespace(wait_seconds=0.0)), ranks)
    while not tuner.is_done:
        with tuner.iteration():
            step(net, training, next(count))
    finalists = {CHOSEN: optimizer.strategy.settings, DEFAULT: default}
    settings = by_hand(default)

    def measured(settings: dict[str, CommSettings], rounds: int) -> dict[str, list[float]]:
        """Trains with each of the settings. Returns, on rank 0, the milliseconds of a step by name and round."""
        found: dict[str, list[float]] = {name: [] for name in settings}
        for number in range(rounds):
            for name, one in list(settings.items())[:: -1 if number % 2 else 1]:
                if one != optimizer.strategy.settings:
                    optimizer.communicate(one)
                steps = [step(net, training, next(count)) for _ in range(WARM_UP + TIMED)][WARM_UP:]
                every = ranks.gather(steps)
                if every is not None:
                    found[name].append(1000 * statistics.median(map(max, zip(*every, strict=True))))
        return found

    grid = measured(settings, options.rounds)
    best = ranks.broadcast_object(min(grid, key=lambda name: statistics.median(grid[name])) if not ranks.rank else "")
    # The best by hand may be what was chosen, or the defaults: each settings are measured once.
    once = {one: name for name, one in {**finalists, best: settings[best]}.items()}
    found = measured({name: one for one, name in once.items()}, options.finals)
    finals = {name: found[once[one]] for name, one in {**finalists, best: settings[best]}.items()}
    if ranks.rank == 0:
        chosen = as_text(finalists[CHOSEN])
        print(json.dumps({"chosen": chosen, "link": str(ranks.links()), "grid": grid, "finals": finals}), flush=True)
    optimizer.wait()
    optimizer.close()
    ranks.close()


def measure(options: argparse.Namespace, link: str) -> dict:
    """Runs work() on two ranks with a link between them, and returns what rank 0 has printed. Raises SystemExit."""
    me = [sys.executable, str(Path(__file__).resolve()), "--work", "--model", options.model]
    me += ["--batch", str(options.batch), "--precision", options.precision, "--rounds", str(options.rounds)]
    me += ["--finals", str(options.finals)]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    launcher = ["mpiexec", "-n", "2"] if link == "here" else [options.netlab, "run", "2"]
    if link != "here":
        subprocess.run([options.netlab, "up", "2", link], check=True)
    try:
        done = subprocess.run([*launcher, *me], env=environ, capture_output=True, text=True, check=False)
    finally:
        if link != "here":
            subprocess.run([options.netlab, "down"], check=True)
    if done.returncode:
        raise SystemExit(f"{link} failed:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def lines(link: str, told: dict) -> list[str]:
    """Returns a row for the chosen settings, the best and the worst by hand, and the defaults."""
    finals, grid = told["finals"], {name: statistics.median(rounds) for name, rounds in told["grid"].items()}
    worst = max(grid, key=grid.__getitem__)
    (best,) = (name for name in finals if name not in (CHOSEN, DEFAULT))
    rows = [f"{link} ({told['link']})", f"  autotune chose {told['chosen']}"]
    for what, name in ((CHOSEN, CHOSEN), (DEFAULT, DEFAULT), ("best by hand", best)):
        ratio = statistics.median(a / b for a, b in zip(finals[name], finals[best], strict=True))
        where = "" if name in (CHOSEN, DEFAULT) else f"  {name}"
        rows.append(f"  {what:20s}{statistics.median(finals[name]):9.1f} ms{ratio:8.3f}{where}")
    return [*rows, f"  {'worst by hand':20s}{grid[worst]:9.1f} ms{'':8s}  {worst}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(ROOT / "nets/googlenet.prototxt"))
    parser.add_argument("--batch", type=int, default=4, help="per rank")
    parser.add_argument("--links", default="10gbit,1gbit,500mbit")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--rounds", type=int, default=3, help="how often the grid is measured")
    parser.add_argument("--finals", type=int, default=24, help="how often the finalists are measured")
    parser.add_argument("--netlab", default="netlab")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for name in ("batch", "rounds", "finals"):
        if getattr(options, name) < 1:
            parser.error(f"--{name}: expected 1 or more, got {getattr(options, name)}")
    if options.work:
        work(options)
        return
    found = {}
    for link in options.links.split(","):
        found[link] = measure(options, link)
        print("\n".join(lines(link, found[link])), flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
