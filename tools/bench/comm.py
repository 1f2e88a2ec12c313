#!/usr/bin/env python3
"""Measures what communication costs: training steps on rate-limited hosts, and the same steps on one rank, in one
session.

    python tools/bench/comm.py --netlab netlab --rounds 3
    python tools/bench/comm.py --netlab netlab --links 1gbit --precision bf16 --comm 'compression: BF16' --shard
    python tools/bench/comm.py --links here --hosts 4 --model nets/alexnet.prototxt --rule Adam --shard
    python tools/bench/comm.py --netlab netlab --peer 'python my_ddp_training.py'

`netlab` is a program that simulates hosts on this machine, such as network namespaces with rate-limited links; it is
not part of this repository, and needs root. Its commands: `up HOSTS LINK` (hosts at 10.77.0.1 and following; links of
1gbit, 200mbit, ...), `run HOSTS COMMAND` (mpiexec, a rank on each host), `exec HOST COMMAND` (hosts count from 1),
`down`.

Every round runs, one after the other: one rank alone (the base); single ranks at the same time ("apart"), which shows
how much they slow each other down without a network; and for each link the ranks with servers, with --shard also with
sharded updates (comm_param { shard_updates }), without servers (MLSL_NUM_SERVERS=0), and the peer, a command that
trains with DDP as RANK of WORLD_SIZE and prints `step N ms`. Every rank has one thread. With the link "here", mpiexec
starts the ranks on this host.

The columns are medians over the rounds of medians over the steps:
  step      milliseconds of a step of the slowest rank
  x base    step divided by the base's of the same round
  waiting   milliseconds in which the solver's thread waited for reduced gradients
  solver    milliseconds of processor time of the thread that computes
  servers   the same for all other threads: servers, MPI
  kernel    the same outside of processes, on the whole machine: interrupts, in which TCP receives
  memory    MB of a rank that are resident while it trains
  peak      the most MB that were resident, also before
  bound     max(base, bytes of an allreduce / rate): a lower bound for any order of sending
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shlex
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.net import Net

ROOT = Path(__file__).resolve().parents[2]
BITS = {"gbit": 1e9, "mbit": 1e6}
TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")


# One rank


def thread_ms() -> tuple[float, float]:
    """Returns the milliseconds of processor time of this thread, and those of all others of the process."""
    own = others = 0.0
    for task in Path("/proc/self/task").iterdir():
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        spent = (int(fields[11]) + int(fields[12])) * TICK_MS
        if int(task.name) == threading.get_native_id():
            own = spent
        else:
            others += spent
    return own, others


def interrupts_ms() -> float:
    """Returns the milliseconds of processor time of interrupts, soft ones included, of all cores."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return (int(fields[6]) + int(fields[7])) * TICK_MS


def resident() -> int:
    """Returns the resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def fed_net(options: argparse.Namespace, rank: int) -> Net:
    """Returns the net of options.model in phase TRAIN, with synthetic data that differ from rank to rank."""
    from engine import proto
    from engine.config import read_net
    from engine.data.source_shapes import SourceShapes
    from engine.examine.synthetic import feed_synthetic
    from engine.net import Net, NetOptions

    config = read_net(options.model, [f"layer[data].data_param.batch_size={options.batch}"])
    config.message.state.phase = proto.TRAIN
    shapes_of = SourceShapes(config.message, proto.TRAIN, lambda line: None)
    net = Net(config, proto.TRAIN, NetOptions(shapes_of=shapes_of, precision=options.precision))
    feed_synthetic(net, seed=1 + rank)
    return net


def work(options: argparse.Namespace) -> None:
    """Trains as one of the ranks that a launcher has started. Rank 0 prints the figures of all ranks as JSON."""
    from google.protobuf import text_format

    from engine import proto
    from engine.comm.world import world
    from engine.examine.benchmark import Training, step

    ranks = world()
    net = fed_net(options, ranks.rank)
    training = Training(net, ranks, text_format.Parse(options.comm, proto.CommParameter()), options.rule)
    for iteration in range(2):
        step(net, training, iteration)
    seconds, before = [], (*thread_ms(), interrupts_ms(), training.optimizer.waited_ns() / 1e6)
    ranks.barrier()
    for iteration in range(2, 2 + options.iterations):
        begin = time.perf_counter()
        step(net, training, iteration)
        seconds.append(time.perf_counter() - begin)
    after = (*thread_ms(), interrupts_ms(), training.optimizer.waited_ns() / 1e6)
    training.optimizer.wait()
    spent = [(b - a) / options.iterations for a, b in zip(before, after, strict=True)]
    figures = dict(zip(("solver", "servers", "kernel", "waiting"), spent, strict=True))
    figures |= {"step": 1000 * statistics.median(seconds), "bytes": training.optimizer.gradients.nbytes}
    figures["memory"] = resident() / 1e6
    figures["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    every = ranks.gather(figures)
    if every:
        how = training.optimizer.describe()
        print(json.dumps({"how": how, "link": str(ranks.links()), "ranks": every}), flush=True)
    training.optimizer.close()
    ranks.close()


# The session


class Session:
    """Runs the rounds and keeps their figures."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        me = [sys.executable, str(Path(__file__).resolve()), "--work", "--model", options.model]
        me += ["--batch", str(options.batch), "--precision", options.precision, "--rule", options.rule]
        self.worker = [*me, "--iterations", str(options.iterations)]
        self.environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        self.rows: dict[str, list[dict]] = {}  # name -> one entry for each round

    def note(self, name: str, figures: dict) -> None:
        """Adds a round's figures to the row of this name."""
        self.rows.setdefault(name, []).append(figures)
        print(f"  {name:28s} step {figures['step']:8.1f} ms  {figures.get('how', '')}", file=sys.stderr, flush=True)

    def engine(self, name: str, launcher: list[str], sharded: bool = False, **variables: str) -> None:
        """Runs work() on ranks, and notes the largest figures of any rank. variables: of the environment."""
        command = [*launcher, *self.worker, "--comm", self.options.comm + " shard_updates: true" * sharded]
        done = subprocess.run(command, env=self.environ | variables, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{name} failed:\n{done.stdout}{done.stderr}")
        told = json.loads(done.stdout.strip().splitlines()[-1])
        figures = {key: max(rank[key] for rank in told["ranks"]) for key in told["ranks"][0]}
        self.note(name, figures | {"how": f"{told['how']}; {told['link']}"})

    def apart(self) -> None:
        """Runs as many single ranks as there are hosts, at the same time and without communication."""
        count = self.options.hosts
        runs = [
            subprocess.Popen(self.worker, env=self.environ, stdout=subprocess.PIPE, text=True) for _ in range(count)
        ]
        told = [json.loads(run.communicate()[0].strip().splitlines()[-1])["ranks"][0] for run in runs]
        self.note(f"{count} ranks apart", {key: max(rank[key] for rank in told) for key in told[0]})

    def peer(self, name: str) -> None:
        """Runs the peer's command on all hosts."""
        options, runs = self.options, []
        command = [*shlex.split(options.peer), "--batch", str(options.batch), "--threads", "1"]
        command += ["--dtype", options.precision, "--steps", str(options.iterations)]
        for rank in range(options.hosts):
            where = {"RANK": str(rank), "WORLD_SIZE": str(options.hosts), "GLOO_SOCKET_IFNAME": "eth0"}
            where |= {"MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29511"}
            launch = [options.netlab, "exec", str(rank + 1), *command]
            runs.append(subprocess.Popen(launch, env=self.environ | where, stdout=subprocess.PIPE, text=True))
        steps = [float(re.findall(r"step ([0-9.]+) ms", run.communicate()[0])[-1]) for run in runs]
        self.note(name, {"step": max(steps)})

    def round(self) -> None:
        options = self.options
        self.engine("1 rank", [])
        self.apart()
        for link in options.links.split(","):
            if link == "here":
                self.link(link, ["mpiexec", "-n", str(options.hosts)])
                continue
            subprocess.run([options.netlab, "up", str(options.hosts), link], check=True)
            try:
                self.link(link, [options.netlab, "run", str(options.hosts)])
                if options.peer:
                    self.peer(f"{link}, peer")
            finally:
                subprocess.run([options.netlab, "down"], check=True)

    def link(self, name: str, launcher: list[str]) -> None:
        """Runs the ranks of one link, in all ways that are wanted."""
        self.engine(f"{name}, servers", launcher)
        if self.options.shard:
            self.engine(f"{name}, sharded", launcher, sharded=True)
        if not self.options.servers_only:
            self.engine(f"{name}, no servers", launcher, MLSL_NUM_SERVERS="0")

    def report(self) -> None:
        options, hosts = self.options, self.options.hosts
        print(
            f"{Path(options.model).stem}, {hosts} hosts x 1 thread x {options.batch} images, {options.precision}, "
            f"comm_param {{ {options.comm} }}; medians of {options.rounds} rounds of {options.iterations} steps; ms"
        )
        columns = ("waiting", "solver", "servers", "kernel", "memory", "peak")
        print(f"{'':24s}{'step':>9s}{'x base':>8s}" + "".join(f"{name:>9s}" for name in columns) + f"{'bound':>9s}")
        base = statistics.median(each["step"] for each in self.rows["1 rank"])
        travelling = self.rows["1 rank"][0]["bytes"] * (0.5 if "BF16" in options.comm else 1)
        for name, rounds in self.rows.items():
            ratios = [each["step"] / base["step"] for each, base in zip(rounds, self.rows["1 rank"], strict=True)]
            line = f"{name:24s}{statistics.median(r['step'] for r in rounds):9.1f}{statistics.median(ratios):8.3f}"
            for column in columns:
                known = [each[column] for each in rounds if column in each]
                line += f"{statistics.median(known):9.1f}" if known else " " * 9
            rate = re.match(r"([0-9.]+)([gm]bit)", name)
            if rate and "peer" not in name:
                seconds = 2 * (hosts - 1) / hosts * travelling * 8 / (float(rate[1]) * BITS[rate[2]])
                line += f"{max(base, 1000 * seconds):9.1f}"
            print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(ROOT / "nets/resnet50.prototxt"))
    parser.add_argument("--batch", type=int, default=16, help="per rank")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--links", default="10gbit,1gbit,200mbit")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--comm", default="", help="fields of comm_param, as in a solver")
    parser.add_argument("--rule", default="SGD", help="the update rule, a solver's type")
    parser.add_argument("--shard", action="store_true", help="with sharded updates, too")
    parser.add_argument("--servers_only", action="store_true", help="leave out MLSL_NUM_SERVERS=0")
    parser.add_argument("--iterations", type=int, default=6, help="steps per run, after two to warm up")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--netlab", default="netlab")
    parser.add_argument("--peer", default="", help="a command to which --batch, --threads, --dtype, --steps are added")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options)
        return
    session = Session(options)
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
        session.round()
    session.report()


if __name__ == "__main__":
    main()
