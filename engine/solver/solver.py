"""The training loop: batches, forward, backward, update; when to test and to take snapshots; alike on every rank."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from engine import proto
from engine.comm.buckets import buckets_of
from engine.comm.factory import make_strategy, settings_of
from engine.comm.precision import usable_precision
from engine.comm.strategies.strategy import Step
from engine.comm.world import World
from engine.config import Config, nets_of_solver
from engine.data.feeder import Feeder
from engine.errors import DataError
from engine.net.gates import gates
from engine.report.log import log
from engine.report.metrics import LossWindow
from engine.report.progress import Progress
from engine.report.timeline import Timeline
from engine.solver.display import Display
from engine.solver.drift import check_drift
from engine.solver.finite import check_loss, check_weights
from engine.solver.history import History
from engine.solver.model_parallel import ModelParallel
from engine.solver.schedules import Plateau, learning_rate
from engine.solver.signals import SNAPSHOT, STOP, Signals
from engine.solver.snapshots import SnapshotFiles
from engine.solver.testing import Testing
from engine.solver.timing import Timing
from engine.solver.train_net import build_alike, divide, net_options
from engine.solver.update import buckets_for, make_updater, rule_of
from engine.solver.validate import validate
from engine.watchdog import board


class Solver:
    """Trains the net of a solver file, on this rank of `world`.

        solver = Solver(read_solver("solvers/digits.prototxt"), world())
        solver.solve()

    timeline: collects the spans of a few iterations. layer_times: logs a table of times at the end. skip_bad_images:
    replaces images that cannot be decoded. every_blob: nothing is fused, so that programs can read every blob and
    gradient. feeder: what feeds the nets, made as a Feeder is. `on_gradients`, if set, is called before each update,
    when this rank's gradients are complete. Raises the exceptions of engine.errors for whatever cannot be read, built
    or run.
    """

    def __init__(
        self,
        config: Config,
        world: World,
        *,
        signals: Signals | None = None,
        timeline: Timeline | None = None,
        layer_times: bool = False,
        skip_bad_images: bool = False,
        every_blob: bool = False,
        feeder: Callable[..., Feeder] = Feeder,
    ):
        self.config, self.param, self.world = config, config.message, world
        self.every_blob = every_blob
        self.on_gradients: Callable[[], None] | None = None
        self.signals = signals or Signals()
        validate(self.param, lambda field: config.where(path=field))
        self.rate = learning_rate(self.param, config.where(path="lr_policy"))
        self.seed = self.param.random_seed if self.param.random_seed >= 0 else 1
        self.iteration = 0
        self.iter_size = max(1, self.param.iter_size)
        self.recent_loss = LossWindow(self.param.average_loss)
        self.last_rate: float | None = None
        nets = nets_of_solver(config)
        self.feeder = feeder(nets.train, proto.TRAIN, self.seed, world, skip_bad_images=skip_bad_images)
        self.precision = usable_precision(self.param.Precision.Name(self.param.precision).lower(), world)
        self.groups, parts = divide(nets.train, world)
        self._net_options = net_options(self, nets.train, parts)
        self.net = build_alike(nets.train, self._net_options, world)
        self.model_parallel = ModelParallel(self.net, world)
        self.model_parallel.refuse(self.param, lambda field: config.where(path=field))
        self.feeder.connect(self.net)
        self._connect()
        self.timing = Timing(self, timeline, layer_times)
        self.display = Display(self)
        self.testing = Testing(self, nets.tests, skip_bad_images, feeder)
        self.evaluators = self.testing.evaluators
        self.files = SnapshotFiles(self)

    def _connect(self) -> None:
        """Makes buckets, update rule, and the strategy that reduces gradients while backward runs."""
        from engine.host import _core

        net, param = self.net, self.param
        settings = settings_of(self.world, param.comm_param)
        buckets = buckets_for(net, settings)
        self.history = History(net, rule_of(param).histories)
        self.gradients = np.frombuffer(net.gradients, np.float32)[: net.arena_size]
        self.weights = np.frombuffer(net.weights, np.float32)[: net.arena_size]
        updater = make_updater(param, net, buckets, self.weights, self.gradients, self.history.arrays)
        self.queue, self.threads = _core.ReadyQueue(len(buckets)), _core.threads()
        self.strategy = make_strategy(self.world, self.queue, updater, buckets, self.gradients, settings, self.threads)
        self.strategy.keep_gradients = self.every_blob
        # On the main thread, between ops: a stream of its own, beside those of the servers.
        self.sync_channel = self.world.channel() if net.synchronised else None
        self._attach()

    def _attach(self) -> None:
        """Connects the net's program to the ready queue, the board and the sums over ranks (synchronised BatchNorm)."""
        net = self.net
        self.losses = [(net.blobs[top].tensor, weight) for _, top, weight in net.losses()]
        net.program.set_queue(self.queue, gates(net, buckets_of(self.strategy.buckets)))
        net.set_board(self.world.board, 0, self.feeder.sources, [bucket.name for bucket in self.strategy.buckets])
        if self.sync_channel is not None:
            net.program.set_ranks(self.world.size, self.sync_channel.allreduce)

    # Weights and state

    def load_weights(self, paths: list[str]) -> None:
        """For fine-tuning: takes values by layer name, file after file; all others keep their initial values."""
        self.files.load_weights(paths)

    def restore(self, path: str) -> None:
        """Continues from a solverstate and the weights that it names."""
        self.files.restore(path)

    def share_weights(self) -> None:
        """Broadcasts rank 0's weights and history, except for the parts of layers that are a rank's own."""
        arenas = [self.weights, *self.history.arrays]
        with self.model_parallel.kept(arenas):
            for array in (*arenas, np.frombuffer(self.net.fixed, np.float32)):
                self.world.broadcast(array)

    # Running

    def solve(self) -> bool:
        """Trains up to max_iter. Returns False if a signal stopped it early (after taking the snapshot)."""
        self.display.plan()
        self.files.check_size()
        self.share_weights()
        self.feeder.start(self.samples_seen())
        try:
            with self.signals:
                finished = self._run(self.param.max_iter)
            if not finished:
                log("Optimization stopped early.")
                return False
            self._finish()
            log("Optimization Done.")
            return True
        finally:
            self.feeder.close()
            self.display.skipped()

    def close(self) -> None:
        """Ends servers and data threads. Not for a run that failed: that one aborts."""
        self.world.board.enter(board.END)
        self.strategy.close()
        if self.sync_channel is not None:
            self.sync_channel.close()
        self.testing.close()

    def samples_seen(self) -> int:
        """Position in the global sequence of samples."""
        return self.files.samples_before + (self.iteration - self.files.first_iteration) * self.samples_per_iteration

    @property
    def samples_per_iteration(self) -> int:
        return max(1, self.feeder.batch_size) * self.world.size * self.iter_size

    def _run(self, until: int) -> bool:
        self.display.begin()
        every = self.param.comm_param.drift_check
        with Progress("Training", until, begin=self.iteration) as progress:
            while self.iteration < until:
                asked = self.world.agree(self.signals.flags)
                if self.testing.is_due():
                    self.test()
                self.step()
                progress.update(self.iteration, note=f"loss = {self.recent_loss.value:.4g}")
                if every and self.iteration % every == 0:
                    self._check_drift()
                if self.param.snapshot and self.iteration % self.param.snapshot == 0:
                    self.snapshot()
                if not self._obey(asked.finish()):
                    return False
        return True

    def _obey(self, flags: int) -> bool:
        """Does what a signal on any rank asked for, at the same step boundary on all; False to stop."""
        self.signals.clear(flags & SNAPSHOT)
        stop = bool(flags & STOP)
        if flags & SNAPSHOT or (stop and self.param.snapshot_after_train):
            self.snapshot()
        return not stop

    def step(self) -> None:
        """One iteration: iter_size micro-batches and an update, which the next forward waits for, parameter by
        parameter.
        """
        loss = 0.0
        self.timing.begin()
        self.world.board.iteration(self.iteration)
        for micro in range(self.iter_size):
            last = micro == self.iter_size - 1
            first_sample = self.timing.next_batch()
            loss += self._forward(micro, first_sample)
            program = self.net.program
            program.mark_ready(last and self.on_gradients is None)
            if micro == 0:
                self.timing.wait_for_updates()
                program.zero_gradients()
            if last:
                self._start_update(loss / self.iter_size)
            program.backward()
            self.timing.passed()
        if self.on_gradients is not None:
            self.on_gradients()
            self.release_gradients()
        self.strategy.backward_done()
        self.timing.end()
        self.iteration += 1
        self.timing.stepped()

    def release_gradients(self) -> None:
        """Marks all buckets ready at once, in the order in which backward would have."""
        for bucket in self.strategy.buckets:
            self.queue.ready(bucket.index)

    def _forward(self, micro: int, first_sample: int) -> float:
        """Forward of one micro-batch; the loss of this rank. Raises NumericalError naming iteration and layer."""
        try:
            # Samples tell micro-batches apart: what is random does not depend on iter_size.
            self.net.run_forward(self.iteration, first_sample, feed_step=self.iteration * self.iter_size + micro)
        except DataError as error:
            raise DataError(f"iteration {self.iteration}: {error}. {self.feeder.describe_batch()}".strip()) from None
        loss = float(sum(weight * tensor.get().sum() for tensor, weight in self.losses))
        check_loss(self, loss)
        return loss

    def _start_update(self, loss: float) -> None:
        begin = time.monotonic_ns()
        self.recent_loss.add(loss)
        if isinstance(self.rate, Plateau):
            self.rate.see(self.smoothed_loss())
        rate = self.rate(self.iteration)
        if self.param.display and self.iteration % self.param.display == 0:
            check_weights(self)
            self.display.iteration(rate)
        self.timing.aside(begin)
        correction = 1.0
        if self.param.momentum_correction and self.last_rate:
            correction = rate / self.last_rate
        self.last_rate = rate
        self.strategy.start(Step(self.iteration, rate, self.iter_size, max(0.0, self.param.clip_gradients), correction))

    def smoothed_loss(self) -> float:
        """Mean loss of the last average_loss iterations, over all ranks."""
        total = np.array([self.recent_loss.value])
        self.world.allreduce(total)
        return float(total[0]) / self.world.size

    def test(self) -> None:
        """All test nets on the weights as they are, statistics of BatchNorm averaged over ranks."""
        self._settle()
        self.testing.run()

    def snapshot(self) -> None:
        """Raises, before anything is written, NumericalError if the last update has made weights infinite or NaN,
        CommError if ranks differ (weights are never sent again, which would hide a difference)."""
        self._settle()
        self.world.board.enter(board.SNAPSHOT)
        self._check_drift()
        check_weights(self)
        self.files.write()

    def _settle(self) -> None:
        """Every update is in the weights, and statistics are the ranks' mean."""
        self.strategy.wait_all()
        self.world.allreduce_mean(self.net.statistics())

    def _finish(self) -> None:
        """The last snapshot and test, the curve beside the snapshots (rank 0), and the timeline (all ranks)."""
        if self.param.snapshot_after_train and not (self.param.snapshot and self.iteration % self.param.snapshot == 0):
            self.snapshot()
        if self.recent_loss.recent:
            log(f"Iteration {self.iteration}, loss = {self.smoothed_loss():.6g}")
        if self.evaluators:
            self.test()
        self.strategy.wait_all()
        self.world.board.enter(board.END)
        self.display.write_curve()
        self.timing.write()

    def _check_drift(self) -> None:
        """Raises CommError when weights or optimizer state of two ranks are not the same bits."""
        self.strategy.wait_all()
        check_drift(self.world, self.net, self.weights, self.history.named, self.iteration)
