"""What a solver prints: Caffe's lines, which parse_log reads, a few more, and the curve at the end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.comm.settings import ignored_variables
from engine.data.prefetch import data_threads
from engine.host.cores import all_hosts_and_cores, clash, core_plan, host_and_cores
from engine.report import plot
from engine.report.log import log, warn
from engine.report.metrics import output_lines

if TYPE_CHECKING:
    from engine.inference.evaluator import Evaluator
    from engine.solver.solver import Solver


class Display:
    """Told by the solver: begin() before the first iteration and iteration() at each; test() after each test."""

    def __init__(self, solver: Solver):
        self._solver = solver
        self._curve = plot.History(solver.net.name)
        self._mark = (time.monotonic(), solver.iteration)  # of the last display

    def begin(self) -> None:
        self._mark = (time.monotonic(), self._solver.iteration)

    def plan(self) -> None:
        """Collective. What is trained, and with what."""
        solver = self._solver
        log(f"Solving {solver.net.name}")
        log(f"Learning Rate Policy: {solver.param.lr_policy}")
        log(self._batches())
        if solver.model_parallel:
            log(f"Model parallelism: {solver.model_parallel.describe()}")
        self._cores()
        if solver.world.size > 1:
            log(f"Link: {solver.world.links()}")
            for line in ignored_variables():
                log(line)

    def _batches(self) -> str:
        solver = self._solver
        batch, images, samples = solver.feeder.batch_size, solver.feeder.size, solver.samples_per_iteration
        known = images and batch
        epoch = f", {images / samples:.1f} iterations per epoch of {images} samples" if known else ""
        ranks, threads = (
            f"{number} {what}{'s' if number > 1 else ''}"
            for number, what in ((solver.world.size, "rank"), (solver.threads, "thread"))
        )
        return (
            f"Global batch {samples} = {ranks} x {batch} x iter_size {solver.iter_size}{epoch}; "
            f"{solver.strategy.describe()}; {threads} per rank"
        )

    def _cores(self) -> None:
        """Collective. Which threads there are, and a warning where they are in each other's way."""
        from engine.host import _core

        solver = self._solver
        alone = solver.world.size == 1
        line, warning = core_plan(
            host_and_cores(),
            all_hosts_and_cores(solver.world),
            threads=solver.threads,
            servers=0 if alone else solver.strategy.settings.servers,
            server_cores=None if alone else solver.strategy.settings.cores,
            decoders=data_threads() if solver.feeder.size else 0,
            bound=_core.bound_cores(),
        )
        log(line)
        for text in (warning, clash(solver.world)):
            if text and solver.world.rank == 0:
                warn(text)

    def iteration(self, rate: float) -> None:
        """Collective. The figures are means over ranks."""
        solver = self._solver
        loss, number = solver.smoothed_loss(), solver.iteration
        now, (before, since) = time.monotonic(), self._mark
        self._mark = (now, number)
        count, elapsed = number - since, now - before
        speed = f" ({count / elapsed:.6g} iter/s, {elapsed:.6g}s/{count} iters)" if count else ""
        log(f"Iteration {number}{speed}, loss = {loss:.6g}")
        outputs = {}
        for name, values in solver.net.outputs().items():
            outputs[name] = values.astype(np.float64).ravel()
            solver.world.allreduce(outputs[name])
            outputs[name] /= solver.world.size
        for line in output_lines("Train", outputs, {top: weight for _, top, weight in solver.net.losses()}):
            log(line)
        log(f"Iteration {number}, lr = {rate:.6g}")
        solver.timing.log_line()
        self._curve.train(number, loss, rate)

    def test(self, evaluator: Evaluator, values: dict[str, Any], index: int) -> None:
        """What test net number `index` gave."""
        evaluator.log_outputs(values)
        self._curve.test(self._solver.iteration, values, evaluator.loss_weights, index)

    def skipped(self) -> None:
        """The images of this rank that --skip_bad_images left out."""
        skipped = self._solver.feeder.skipped
        for key, reason in list(skipped.items())[:10]:
            warn(f"Skipped '{key}': {reason}")
        if skipped:
            warn(f"Skipped {len(skipped)} undecodable images; each was replaced by the next one that can be decoded.")

    def write_curve(self) -> None:
        """Rank 0's, beside the snapshots."""
        solver, param = self._solver, self._solver.param
        saves = param.snapshot_prefix or param.snapshot or param.snapshot_after_train
        if solver.world.rank == 0 and saves:
            plot.write_curve(self._curve, str(solver.files.prefix()))
