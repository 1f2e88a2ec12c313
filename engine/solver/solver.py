"""The training loop: batches, forward, backward, update; tests, display, snapshots; the same decisions on every
rank.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from engine import proto
from engine.comm.buckets import buckets_of, make_buckets, segments_of
from engine.comm.registry import make_strategy, settings_of
from engine.comm.sentinel_process import board
from engine.comm.strategy import Step
from engine.comm.world import World
from engine.config import Config, nets_of_solver
from engine.cores import all_hosts_and_cores, core_plan, host_and_cores
from engine.data.prefetch import data_threads
from engine.errors import DataError, NumericalError
from engine.feeding import Feeder
from engine.graph.model_parallel import model_parts
from engine.layers.parts import Part
from engine.net import WATCHED, Net
from engine.net.gates import gates
from engine.precision import usable_precision
from engine.report import plot
from engine.report.log import log, warn
from engine.report.metrics import LossWindow, output_lines
from engine.report.progress import Progress
from engine.report.table import human
from engine.report.timeline import Timeline
from engine.solver.drift import check_drift
from engine.solver.files import SnapshotFiles
from engine.solver.history import History
from engine.solver.lr import Plateau, learning_rate
from engine.solver.sight import Sight
from engine.solver.signals import SNAPSHOT, STOP, Signals
from engine.solver.validate import validate
from engine.solver.wholes import Wholes

# SolverParameter.type -> update rule of the extension.
RULES = {
    "SGD": "sgd",
    "Nesterov": "nesterov",
    "AdaGrad": "adagrad",
    "RMSProp": "rmsprop",
    "AdaDelta": "adadelta",
    "Adam": "adam",
}


class Solver:
    """Trains the net of a solver file, on this rank of `world`.

        solver = Solver(read_solver("solvers/digits.prototxt"), world())
        solver.solve()

    `timeline` collects what a few iterations did, and when; `layer_times` adds a table at the end. With `every_blob`
    nothing is fused, and programs can read every blob and gradient; `on_gradients`, if set, is called before each
    update, when the gradients of this rank are complete. Raises what reading, building and running raise: see
    engine.errors.
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
        self.net = self._build_net(nets.train)
        self.wholes = Wholes(self.net, world)
        self.wholes.refuse(self.param, lambda field: config.where(path=field))
        self.feeder.connect(self.net)
        self._connect()
        self.sight = Sight(self, timeline, layer_times)
        self.evaluators = self._evaluators(nets, skip_bad_images, feeder)
        self.curve = plot.History(self.net.name)
        self._mark = (time.monotonic(), self.iteration)  # of the last display
        self.files = SnapshotFiles(self)

    # Building

    def _build_net(self, config: Config) -> Net:
        """The train net, in the same layouts on every rank: in plain ones where processors or libraries differ."""
        counts = model_parts(config, self.world.size)
        groups = {count: self.world.group(count) for count in sorted(set(counts.values()))}
        self.groups = list(groups.values())
        parts = {name: Part(self.world.rank % count, count, groups[count]) for name, count in counts.items()}

        state = config.message.state
        self._net_options = {
            "level": state.level,
            "stages": state.stage,
            "seed": self.seed,
            "shapes_of": self.feeder.shapes_of,
            "accumulate": self.iter_size > 1 or self.every_blob,
            "precision": self.precision,
            "parts": parts,
            "memory_budget": None if self.every_blob else int(1e6 * self.param.memory_budget_mb) or None,
            **(WATCHED if self.every_blob else {}),
        }

        def make(plain: bool) -> Net:
            return Net(config, proto.TRAIN, plain_parameters=plain, **self._net_options)

        net = make(plain=False)
        if self.param.memory_budget_mb:
            log(
                f"Memory budget {self.param.memory_budget_mb:g} MB: blobs, gradients and masks take "
                f"{human(net.program.activation_bytes, 'B')}; {len(net.repeats)} layers are computed twice"
            )
        prints = self.world.gather(net.fingerprint()) or [""]
        other = self.world.broadcast_object(next((r for r, found in enumerate(prints) if found != prints[0]), None))
        if other is None:
            return net
        log(f"Ranks 0 and {other} have different processors or oneDNN versions: parameters stay in plain layouts.")
        net = make(plain=True)
        self.world.same_on_all_ranks(net.fingerprint(layouts_only=True), "the net's parameters")
        return net

    def _log_cores(self) -> None:
        """Collective. Which threads there are, and a warning where they are in each other's way."""
        alone = self.world.size == 1
        line, warning = core_plan(
            host_and_cores(),
            all_hosts_and_cores(self.world),
            threads=self.threads,
            servers=0 if alone else self.strategy.settings.servers,
            server_cores=None if alone else self.strategy.settings.cores,
            decoders=data_threads() if self.feeder.size else 0,
        )
        log(line)
        if warning and self.world.rank == 0:
            warn(warning)

    def _connect(self) -> None:
        """Buckets, update rule, and the strategy that takes gradients away while backward runs."""
        from engine import _core

        core, net, param = _core, self.net, self.param
        settings = settings_of(self.world, param.comm_param)
        parameters = [(placed.name, placed.offset, placed.count) for placed in net.parameters]
        parts = {placed.name: placed.parameter.parts for placed in net.parameters}
        buckets = make_buckets(parameters, settings.bucket_bytes, parts)
        rule = "adamw" if param.decoupled_weight_decay else RULES[param.type]
        self.history = History(net, core.update_rules()[rule])
        self.gradients = np.frombuffer(net.gradients, np.float32)[: net.arena_size]
        self.weights = np.frombuffer(net.weights, np.float32)[: net.arena_size]
        multipliers = {
            placed.name: (placed.parameter.lr_mult, placed.parameter.decay_mult) for placed in net.parameters
        }
        segments = [[core.Segment(*piece) for piece in pieces] for pieces in segments_of(buckets, multipliers)]
        hyper = core.Hyper(
            momentum=param.momentum,
            momentum2=param.momentum2,
            delta=param.delta,
            rms_decay=param.rms_decay,
            weight_decay=param.weight_decay,
            l1=param.regularization_type == "L1",
            local_ratio=param.local_gw_ratio if param.local_lr_auto else 0.0,
            local_clip=param.larc_policy == "clip",
        )
        updater = core.Updater(rule, self.weights, self.gradients, self.history.arrays, segments, hyper)
        queue = core.ReadyQueue(len(buckets))
        self.threads = core.threads()
        self.strategy = make_strategy(self.world, queue, updater, buckets, self.gradients, settings, self.threads)
        self.strategy.keep_gradients = self.every_blob
        self.queue = queue
        # On the main thread, between ops: a stream of its own, beside those of the servers.
        self.sync_channel = self.world.channel() if net.synchronised else None
        self._attach()

    def _attach(self) -> None:
        """The net's program gives gradients away, and takes part in sums over the ranks."""
        net = self.net
        self.losses = [(net.blobs[top].tensor, weight) for _, top, weight in net.losses()]
        net.program.set_queue(self.queue, gates(net, buckets_of(self.strategy.buckets)))
        net.set_board(self.world.board, 0, self.feeder.sources, [bucket.name for bucket in self.strategy.buckets])
        if self.sync_channel is not None:
            net.program.set_ranks(self.world.size, self.sync_channel.allreduce)

    def rebuild_net(self, config: Config) -> Net:
        """The net in other shapes, with the parameters that it has. `config`: like the one that it was built from."""
        self.strategy.wait_all()
        self.net = Net(config, proto.TRAIN, share=self.net, before=self.net, **self._net_options)
        self.feeder.connect(self.net)
        self._attach()
        return self.net

    def _evaluators(self, nets, skip_bad_images: bool, feeder: Callable[..., Feeder]) -> list[Any]:
        from engine.evaluate import Evaluator

        if not self.param.test_interval and not self.param.test_iter:
            return []
        return [
            Evaluator(
                config,
                proto.TEST,
                share=self.net,
                world=self.world,
                seed=self.seed,
                skip_bad_images=skip_bad_images,
                precision=self.precision,
                every_blob=self.every_blob,
                feeder=feeder,
                ap_version=self.param.ap_version,
                show_per_class=self.param.show_per_class_result,
                index=index,
            )
            for index, config in enumerate(nets.tests)
        ]

    # Weights and state

    def load_weights(self, paths: list[str]) -> None:
        """Fine-tuning, the collapse phase: values by layer name, file after file, everything else starts afresh."""
        self.files.load_weights(paths)

    def restore(self, path: str) -> None:
        """Goes on from a solverstate and the weights that it names."""
        self.files.restore(path)

    def share_weights(self) -> None:
        """Rank 0's values on every rank, but for the parts of layers that ranks have of their own."""
        arenas = [self.weights, *self.history.arrays]
        with self.wholes.kept(arenas):
            for array in (*arenas, np.frombuffer(self.net.fixed, np.float32)):
                self.world.broadcast(array)

    # Running

    def solve(self) -> bool:
        """Trains up to max_iter. Returns False when a signal stopped it early, after the snapshot that goes with it."""
        log(f"Solving {self.net.name}")
        log(f"Learning Rate Policy: {self.param.lr_policy}")
        log(self._describe())
        if self.wholes:
            log(f"Model parallelism: {self.wholes.describe()}")
        self._log_cores()
        if self.world.size > 1:
            log(f"Link: {self.world.links()}")
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
            self._write_reports()
            log("Optimization Done.")
            return True
        finally:
            self.feeder.close()
            self._report_skipped()

    def close(self) -> None:
        """Ends servers and data threads. Not for a run that failed: that one aborts."""
        self.world.board.enter(board.END)
        self.strategy.close()
        if self.sync_channel is not None:
            self.sync_channel.close()
        for evaluator in self.evaluators:
            evaluator.close()

    def samples_seen(self) -> int:
        """Position in the global sequence of samples."""
        return self.files.samples_before + (self.iteration - self.files.first_iteration) * self.samples_per_iteration

    @property
    def samples_per_iteration(self) -> int:
        return max(1, self.feeder.batch_size) * self.world.size * self.iter_size

    def _describe(self) -> str:
        batch, images = self.feeder.batch_size, self.feeder.size
        epoch = (
            f", {images / self.samples_per_iteration:.1f} iterations per epoch of {images} samples"
            if images and batch
            else ""
        )
        return (
            f"Global batch {self.samples_per_iteration} = {self.world.size} ranks x {batch} x "
            f"iter_size {self.iter_size}{epoch}; "
            f"{self.strategy.describe()}; {self.threads} threads per rank"
        )

    def _run(self, until: int) -> bool:
        self._mark = (time.monotonic(), self.iteration)
        every = self.param.comm_param.drift_check
        with Progress("Training", until, begin=self.iteration) as progress:
            while self.iteration < until:
                asked = self.world.agree(self.signals.flags)
                if self._test_is_due():
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

    def _test_is_due(self) -> bool:
        interval = self.param.test_interval
        if not interval or self.iteration % interval or not self.evaluators:
            return False
        return self.iteration > 0 or self.param.test_initialization

    def step(self) -> None:
        """One iteration: iter_size micro-batches and an update, which the next forward waits for, parameter by
        parameter.
        """
        loss = 0.0
        self.sight.begin()
        self.world.board.iteration(self.iteration)
        for micro in range(self.iter_size):
            last = micro == self.iter_size - 1
            first_sample = self.sight.next_batch()
            loss += self._forward(micro, first_sample)
            program = self.net.program
            program.mark_ready(last and self.on_gradients is None)
            if micro == 0:
                self.sight.wait_for_updates()
                program.zero_gradients()
            if last:
                self._start_update(loss / self.iter_size)
            program.backward()
            self.sight.passed()
        if self.on_gradients is not None:
            self.on_gradients()
            self.release_gradients()
        self.strategy.backward_done()
        self.sight.end()
        self.iteration += 1
        self.sight.stepped()

    def release_gradients(self) -> None:
        """Gives all buckets away at once, in the order in which backward would have."""
        for bucket in self.strategy.buckets:
            self.queue.ready(bucket.index)

    def _forward(self, micro: int, first_sample: int) -> float:
        """Forward of one micro-batch; the loss of this rank. Raises NumericalError naming iteration and layer."""
        try:
            # Samples tell micro-batches apart: what is random does not depend on iter_size.
            self.net.run_forward(self.iteration, first_sample, made_up=self.iteration * self.iter_size + micro)
        except DataError as error:
            raise DataError(f"iteration {self.iteration}: {error}. {self.feeder.describe_batch()}".strip()) from None
        loss = float(sum(weight * tensor.get().sum() for tensor, weight in self.losses))
        if not np.isfinite(loss):
            self.strategy.wait_all()
            culprit = self.net.program.first_nonfinite() or "the update"
            raise NumericalError(
                f"iteration {self.iteration}: the loss is {loss}; "
                f"layer '{culprit}' is the first whose output is not finite. "
                f"{self.feeder.describe_batch()}Lower base_lr or warm up, or set clip_gradients"
            )
        return loss

    def _start_update(self, loss: float) -> None:
        begin = time.monotonic_ns()
        self.recent_loss.add(loss)
        if isinstance(self.rate, Plateau):
            self.rate.see(self.smoothed_loss())
        rate = self.rate(self.iteration)
        self._display(rate)
        self.sight.aside(begin)
        correction = 1.0
        if self.param.momentum_correction and self.last_rate:
            correction = rate / self.last_rate
        self.last_rate = rate
        self.strategy.start(Step(self.iteration, rate, self.iter_size, max(0.0, self.param.clip_gradients), correction))

    # Reporting

    def smoothed_loss(self) -> float:
        """Mean loss of the last average_loss iterations, over all ranks."""
        total = np.array([self.recent_loss.value])
        self.world.allreduce(total)
        return float(total[0]) / self.world.size

    def _display(self, rate: float) -> None:
        """Caffe's lines, from which parse_log.py reads; the figures are means over ranks."""
        if not self.param.display or self.iteration % self.param.display:
            return
        self._check_weights()
        loss = self.smoothed_loss()
        now, (before, since) = time.monotonic(), self._mark
        self._mark = (now, self.iteration)
        count, elapsed = self.iteration - since, now - before
        speed = f" ({count / elapsed:.6g} iter/s, {elapsed:.6g}s/{count} iters)" if count else ""
        log(f"Iteration {self.iteration}{speed}, loss = {loss:.6g}")
        outputs = {}
        for name, values in self.net.outputs().items():
            outputs[name] = values.astype(np.float64).ravel()
            self.world.allreduce(outputs[name])
            outputs[name] /= self.world.size
        for line in output_lines("Train", outputs, {top: weight for _, top, weight in self.net.losses()}):
            log(line)
        log(f"Iteration {self.iteration}, lr = {rate:.6g}")
        self.sight.log_line()
        self.curve.train(self.iteration, loss, rate)

    def test(self) -> None:
        """All test nets on the weights as they are, statistics of BatchNorm averaged over ranks."""
        self._settle()
        for index, evaluator in enumerate(self.evaluators):
            log(f"Iteration {self.iteration}, Testing net (#{index})")
            self.wholes.copy_to(evaluator.net)
            count = self.param.test_iter[index] if index < len(self.param.test_iter) else None
            values = evaluator.run(count)
            evaluator.log_outputs(values)
            self.curve.test(self.iteration, values, evaluator.loss_weights, index)

    def snapshot(self) -> None:
        """Raises, before anything is written, NumericalError if the last update has spoilt the weights, CommError if
        they are not the same on all ranks: nobody sends them around again, which would hide it."""
        self._settle()
        self.world.board.enter(board.SNAPSHOT)
        self._check_drift()
        self._check_weights()
        self.files.write()

    def _check_weights(self) -> None:
        """The loss does not always tell: kernels with a ReLU make 0 of NaN."""
        if not np.isfinite(self.weights).all():
            bad = next(placed for placed in self.net.parameters if not np.isfinite(placed.tensor.get()).all())
            raise NumericalError(
                f"iteration {self.iteration}: the update has made weights of {bad.name} infinite or NaN; no snapshot "
                "is written. Lower base_lr or warm up, or set clip_gradients"
            )

    def _settle(self) -> None:
        """Every update is in the weights, and statistics are the ranks' mean."""
        self.strategy.wait_all()
        self.world.allreduce_mean(self.net.statistics())

    def _report_skipped(self) -> None:
        """The images of this rank that --skip_bad_images left out."""
        skipped = self.feeder.skipped
        for key, reason in list(skipped.items())[:10]:
            warn(f"Skipped '{key}': {reason}")
        if skipped:
            warn(f"Skipped {len(skipped)} undecodable images; each was replaced by the next one that can be decoded.")

    def _write_reports(self) -> None:
        """The curve beside the snapshots (rank 0), and the timeline (all ranks)."""
        self.strategy.wait_all()
        self.world.board.enter(board.END)
        saves = self.param.snapshot_prefix or self.param.snapshot or self.param.snapshot_after_train
        if self.world.rank == 0 and saves:
            path = plot.write_curve(self.curve, str(self.files.prefix()))
            if path:
                log(f"Curve in {path}")
        self.sight.write()

    def _finish(self) -> None:
        if self.param.snapshot_after_train and not (self.param.snapshot and self.iteration % self.param.snapshot == 0):
            self.snapshot()
        if self.recent_loss.recent:
            log(f"Iteration {self.iteration}, loss = {self.smoothed_loss():.6g}")
        if self.evaluators:
            self.test()

    def _check_drift(self) -> None:
        """Raises CommError when weights or optimizer state of two ranks are not the same bits."""
        self.strategy.wait_all()
        check_drift(self.world, self.net, self.weights, self.history.arrays, self.iteration)
