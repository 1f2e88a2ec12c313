"""The training loop: batches, forward, backward, update; when to test and to take snapshots; the same on every rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from engine import proto
from engine.comm.precision import asked_precision, usable_precision
from engine.comm.world import Agreement, World
from engine.config import NetConfig, SolverConfig, net_of_solver, seed_of
from engine.data.feeder import Feeder
from engine.errors import ConfigError, WeightsError
from engine.inference.evaluator import TestInterrupted
from engine.net import Counters, Net, NetOptions
from engine.net.kernel_table import Kernels
from engine.report.curve import Curve
from engine.report.display import Display
from engine.report.log import log, warn
from engine.report.observer import BestOutput, Figures, Observer, Observers, Run, Trace
from engine.solver import elastic, modes, tuner
from engine.solver.elastic import Elastic
from engine.solver.ema import WeightAverage
from engine.solver.finite import blame_loss, check_weights
from engine.solver.model_parallel import ModelParallel
from engine.solver.optimizer import Optimizer
from engine.solver.plan import log_own_skipped, log_plan, log_skipped
from engine.solver.policies import current_step
from engine.solver.recorder import Recorder, figures_of
from engine.solver.replica import Replica
from engine.solver.resolve import refuse_other_epochs, resolve
from engine.solver.signals import SNAPSHOT, STOP, Signals
from engine.solver.snapshots import Snapshots
from engine.solver.state import TrainingState
from engine.solver.test_nets import TestNets
from engine.solver.train_net import build_alike, net_options, parts_of_ranks
from engine.solver.validate import check_schedules, require_loss, saves, validate
from engine.solver.weak import weakly
from engine.watchdog import board
from engine.weights import SolverState


class Solver:
    """Trains the net of a solver file, on this rank of `world`.

        solver = Solver(read_solver("solvers/digits.prototxt"), world())
        solver.solve()

    Args:
        observers: watch the run, beside the display and the curve.
        every_blob: nothing is fused, so that programs can read every blob and gradient.
        make_feeder: makes what feeds the nets, with Feeder's arguments.
        kernels: chooses the kernels that compute the nets.
        needed: files with which later stages begin; snapshot_keep does not remove them.

    Attributes:
        given: the solver as its file has it; `param` is in iterations (resolve()).
        on_gradients: if set, called before each update, when this rank's gradients are complete.

    Raises the exceptions of engine.errors for whatever cannot be read, built or run.
    """

    def __init__(
        self,
        config: SolverConfig,
        world: World,
        *,
        signals: Signals | None = None,
        observers: Sequence[Observer] = (),
        every_blob: bool = False,
        make_feeder: Callable[..., Feeder] = Feeder,
        kernels: Kernels | None = None,
        needed: Sequence[str] = (),
    ):
        self.config, self.param, self.world = config, config.message, world
        self.every_blob, self.kernels = every_blob, kernels or Kernels(say=log)
        self.on_gradients: Callable[[], None] | None = None
        self.signals = signals or Signals()
        validate(self.param, self.config.place)
        self.seed = seed_of(self.param)
        self.state = TrainingState.new(self.param.average_loss)
        self.first_sample, self.begun_from = 0, ""  # see begin_after()
        train = self._train_config()
        self.feeder = make_feeder(train, proto.TRAIN, self.seed, world)
        self.precision = usable_precision(asked_precision(self.param), world)
        groups, parts = parts_of_ranks(train, world)
        self.net = self._build_net(train, net_options(self, parts))
        self.model_parallel = ModelParallel(self.net, world)
        self.model_parallel.refuse(self.param, self.config.place)
        modes.refuse(self.net, self.param, self.config.place)
        self.feeder.connect(self.net)
        self._count_in_iterations()
        self._make_optimizers(train.path)
        self.snapshots = Snapshots(
            self.config, world, self.optimizer, self.model_parallel, self.average, needed, self.optimizers[1:]
        )
        drift_check = self.param.comm_param.drift_check
        self.replica = Replica(world, self.optimizers, self.average, self.model_parallel, drift_check)
        self.test_nets = self._make_test_nets(make_feeder)
        is_due = weakly(self._display_is_due)
        self.observers = Observers([Display(is_due), Curve(is_due), *observers])
        self._observed = False  # whether observers have been told of the run
        # The iteration of the snapshot that was restored, if it stands under this run's own name (a snapshot at that
        # iteration would write it again) or is from after the run's end.
        self._restored_at: int | None = None
        self._saved_at: int | None = None  # the iteration of the last snapshot
        self._stops_by = ""  # how a signal will stop the run now, for the log; "": at the end of an iteration
        self._asks_in = 0  # the earliest iteration in which a signal that comes now is seen
        self._before = -1  # the last iteration of this rank, where it is not in step with the others
        self._recorder = Recorder(self.observers, self.feeder, self.optimizers, groups)
        self._last_trace: Trace | None = None  # what observers have not seen yet when the training ends
        self._tuner = self._make_tuner()
        elastic.refuse(self)
        self.elastic: Elastic | None = None  # while solve() runs

    def _train_config(self) -> NetConfig:
        """Returns the net to train. Raises ConfigError if the solver asks for what this class does not train."""
        if self.param.HasField("adversarial"):
            raise ConfigError(
                "adversarial: two nets that train each other; that is for engine train, check and verify alone",
                self.config.place("adversarial"),
            )
        return net_of_solver(self.config, proto.TRAIN)

    def _build_net(self, config: NetConfig, options: NetOptions) -> Net:
        """Collective. Returns the train net."""
        return build_alike(config, options, self.world, self.feeder, self.kernels)

    def _make_optimizers(self, path: str) -> None:
        """Collective. Makes what updates weights, and their average. path: of the train net. Raises ConfigError if the
        net has no loss."""
        where = self.config.place("lr_policy")
        self.optimizer = Optimizer(self.net, self.param, self.world, where=where, sources=self.feeder.sources)
        self.optimizers = [self.optimizer, *self._other_optimizers()]
        if self.every_blob:  # then a program may set gradients, so that there need be no loss
            self.optimizer.keep_gradients()
        else:
            require_loss(self.net.name, bool(self.net.losses()), path)
        self.average: WeightAverage | None = None
        if self.param.ema:
            self.average = WeightAverage(self.net, self.optimizer.weights, self.param.ema, self.optimizer.sharding)

    def _make_test_nets(self, make_feeder: Callable[..., Feeder]) -> TestNets:
        """Collective. Returns the test nets."""
        options = NetOptions(seed=self.seed, precision=self.precision)
        if self.every_blob:
            options = options.watched().replace(gradients=True)
        feeder, kernels = self.feeder, self.kernels
        return TestNets(self.config, self.world, self.net, feeder, options, make_feeder=make_feeder, kernels=kernels)

    def _other_optimizers(self) -> list[Optimizer]:
        """Returns the optimizers of nets that are trained beside self.net."""
        return []

    def _count_in_iterations(self) -> None:
        """Collective. Resolves what the solver leaves open until batch and data are known: see resolve(). Raises
        ConfigErrors."""
        micro_batch, size = self.feeder.batch_size, self.feeder.size_of_all()
        batch = max(1, micro_batch) * self.world.size * max(1, self.param.iter_size)
        self.given = self.param
        rows = 0 if micro_batch else max(1, self.net.graph.batch_size)
        self.param, self.calendar = resolve(self.given, batch, size, self.config.place, rows)
        self.global_batch = self.calendar.batch  # before it grows, and while no rank has died
        self.config = replace(self.config, message=self.param)
        if self.param is not self.given:
            check_schedules(self.param, self.config.place)

    def _make_tuner(self) -> tuner.Tuner | None:
        """Returns a tuner if the solver asks for one, and there is communication to tune."""
        if not self.param.comm_param.autotune or self.world.size == 1:
            return None
        tuner.refuse(self.observers, self.config.place)
        return tuner.Tuner(self.optimizer, self.feeder, self.world)

    def use_net(self, net: Net) -> None:
        """Goes on with `net`: the same net in other shapes, which has taken over the parameters."""
        self.net = net
        self.feeder.connect(net)
        self.optimizer.attach(net)

    @property
    def feeders(self) -> list[Feeder]:
        """The feeders of all nets."""
        return [self.feeder, *self.test_nets.feeders]

    @property
    def iteration(self) -> int:
        """Updates begun so far."""
        return self.state.iteration

    @property
    def iter_size(self) -> int:
        """Micro-batches of the next iteration."""
        return self.optimizer.micro_batches(self.iteration)

    @property
    def samples_per_iteration(self) -> int:
        """Samples of the next iteration, over all ranks and micro-batches."""
        return max(1, self.feeder.batch_size) * self.world.size * self.iter_size

    def _samples_of(self, iterations: int) -> int:
        """Returns how many samples the first `iterations` iterations of this solver have, over all ranks."""
        return self.calendar.samples(iterations)

    # Weights and state

    def load_weights(self, paths: list[str]) -> None:
        """Takes values by layer name, file after file, for fine-tuning; other layers keep their initial values. Raises
        WeightsError."""
        self.snapshots.load_weights(paths)
        self.replica.is_shared = False

    def begin_after(self, sample: int, begun_from: str) -> None:
        """Begins as a stage of several solvers in a row. Call it before restore().

        sample: the number of the stage's first sample in the whole training, so that no order and no augmentation comes
        twice. begun_from: the digest of the weights with which the stage begins; "" without any."""
        self.first_sample = self.state.samples_seen = sample
        self.begun_from = begun_from

    def restore(self, path: str) -> None:
        """Continues from a solverstate and the weights that it names. The order of samples goes on where it stopped,
        also with another number of ranks. Raises WeightsError; the solver is then as it was."""
        saved = self.snapshots.read(path, partial(self._refuse, path))
        self.replica.is_shared = False  # rank 0 has read them
        for optimizer in self.optimizers:
            optimizer.start_over()
        self.state.restore(saved, self.first_sample + self._samples_of(saved.iteration))
        self._find_first_sample()
        self.begun_from = saved.begun_from or ""
        self.test_nets.samples = saved.test_samples
        past = self.iteration > self.param.max_iter
        mine = Path(path) == self.snapshots.names(saved.iteration)[1]  # rank 0's answer counts: names may have ranks
        self._restored_at = saved.iteration if self.world.broadcast_object(mine or past) else None
        self.test_nets.goals.take_up(self.state.goals)
        self.test_nets.find_best(self.state.goals, self.snapshots)
        if self.every_blob:
            self.kernels.hand_on(saved.kernels)
        if self._tuner:
            self._tuner.restore(saved.tuned, saved.ranks, path)
        if self._observed:  # a script restores in the middle of a run
            self.observers.gone_back(self.iteration)
        log(f"Going on after iteration {self.iteration}" + ("" if past else f" of {self.param.max_iter}"))

    def _find_first_sample(self) -> None:
        """Sets first_sample from the state: samples seen beyond those of this solver's iterations came before it, in
        other stages, in larger batches, or in passes that a script ran."""
        self.first_sample = self.state.samples_seen - self._samples_of(self.iteration)

    def _refuse(self, path: str, saved: SolverState) -> None:
        """Raises WeightsError for a state with which this run cannot go on as it was."""
        if saved.random_seed is not None and self.param.random_seed < 0 and saved.random_seed != self.seed:
            raise WeightsError(
                f"{path}: was trained with random_seed {saved.random_seed}; set it to go on with the same order of "
                "samples"
            )
        refuse_other_epochs(self.given, self.calendar, saved.global_batch, path)

    # Running

    def solve(self) -> bool:
        """Trains up to max_iter. Returns False if a signal stopped it early (after taking the snapshot)."""
        log_plan(self)
        self.snapshots.check_size()
        self.replica.share()
        self.feeder.start(self.state.samples_seen)
        try:
            self.signals.on_stop = weakly(self._say_stop)
            self.elastic = elastic.make(self)
            if self.elastic:
                return self.elastic.outlive(self._train, self._tell_end)
            finished = self._train()
            self._tell_end(finished)
            return finished
        except BaseException:
            log_own_skipped(self.feeders)
            raise
        finally:
            self.elastic = None
            self.feeder.close()
            self.observers.close()

    def _train(self) -> bool:
        """Trains from where the state is to the end. Returns False if a signal stopped it early."""
        self._saved_at = self._restored_at
        with self.signals:
            finished = self.run(self.param.max_iter, stops_early=True) and self._finish()
            if not finished and self.param.snapshot_after_train and self._saved_at != self.iteration:
                self.snapshot()
            self._come_to_an_end()  # in the context: the sentinel may signal this rank when another has stopped the run
        self._last_trace = self._recorder.trace()
        return finished

    def _tell_end(self, finished: bool) -> None:
        """Tells observers and log of the end. Called again if a rank dies in it; observers get the trace once."""
        trace, self._last_trace = self._last_trace, None
        with nullcontext() if finished else self.signals:
            self.observers.end(trace)
        log("Optimization Done." if finished else "Optimization stopped early.")

    def run(self, until: int, stops_early: bool = False) -> bool:
        """Trains until `until` iterations are done, with the tests, checks and snapshots that fall due.

        stops_early: early_stopping may end it before. Returns False if a signal stopped it."""
        self._begin_observing()
        self._stops_by, self._asks_in = "", self.iteration
        moved = True
        while not self._is_over(until, stops_early):
            if moved and self.test_nets.is_due(self.iteration, self.calendar):
                if not self.test():
                    return self._obey(self.world.agree(lambda: self.signals.flags).finish())
                if self._is_over(until, stops_early):
                    return True
            before = self.iteration
            asked = self._advance() if self.optimizer.in_step else self._advance_apart(until)
            # In mode ASYNC a signal that came in a test or snapshot makes ranks meet again before any iteration is
            # made; then neither is repeated.
            moved = self.iteration > before
            if moved and self._snapshot_is_due():
                self.snapshot()
            if self.elastic:  # after the snapshot: if a rank dies in that, the run goes back and takes it again
                self.elastic.keep()
            if asked and not self._obey(asked.finish()):
                return False
        return True

    def _is_over(self, until: int, stops_early: bool) -> bool:
        return self.iteration >= until or (stops_early and self.test_nets.goals.is_patience_over(self.state.goals))

    def _advance(self) -> Agreement | None:
        """Makes one iteration. Returns the ranks' agreement on what signals ask for; None if they do not meet in it."""
        asked = self.world.agree(lambda: self.signals.flags) if self.optimizer.meets(self.iteration) else None
        self._asks_in = self.iteration + (self.world.size > 1)  # a single rank reads its flags when the iteration ends
        with self._tuner.iteration() if self._tuner and not self._tuner.is_done else nullcontext():
            self.step()
        self.replica.check_if_due(self.iteration)
        return asked

    def _advance_apart(self, until: int) -> Agreement:
        """Makes iterations, in mode ASYNC, until ranks must wait for each other: when a test or snapshot is due, when a
        signal has come, or at `until`. Returns the ranks' agreement on what signals ask for."""
        met, meeting = self.iteration, self._next_meeting(until)
        while (mine := self.optimizer.next_iteration(met, meeting, bool(self.signals.flags))) is not None:
            self.state.iteration = mine
            self.step()
            self._before = mine
        staleness = self.optimizer.meet(self.state)
        self.state.samples_seen = self.first_sample + self._samples_of(self.iteration)
        if staleness:
            log(staleness)
        return self.world.agree(lambda: self.signals.flags)

    def _next_meeting(self, until: int) -> int:
        """Returns the next iteration after which a test or snapshot, which need all ranks, is due; `until` at most."""
        until = self.calendar.next_due(self.iteration, until, self.param.snapshot, self.param.snapshot_epoch)
        if not self.test_nets.evaluators:
            return until
        return self.calendar.next_due(self.iteration, until, self.param.test_interval, self.param.test_epoch)

    def _begin_observing(self) -> None:
        """Tells observers of the run, once."""
        if self._observed:
            return
        self._observed, self._before = True, self.iteration - 1
        prefix = self.snapshots.prefix() if self.param.snapshot_prefix or saves(self.param) else ""
        loss_of = max(1, self.param.average_loss)
        best, so_far = self.test_nets.goals.best, self.state.goals
        run = Run(
            self.world,
            self.net,
            self.optimizer.buckets,
            self.iteration,
            self.param.max_iter,
            prefix,
            loss_of,
            BestOutput(best.output, best.index, best.sign, so_far.best_value, so_far.best_iteration) if best else None,
            in_step=self.optimizer.in_step,
        )
        self.observers.begin(run)

    def _say_stop(self, name: str) -> None:
        """Logs, in the listener's thread, how the signal `name` will stop the run."""
        then = ", then a snapshot" if self.param.snapshot_after_train else ""
        now = self._stops_by or f"finishing {self._last_if_stopped()}{then}"
        log(f"{name}: {now}; Ctrl-C ends it at once")

    def _last_if_stopped(self) -> str:
        """Returns what is still finished if a signal stops the run now."""
        if not self.optimizer.in_step:
            return "the updates that are under way"
        end = self.param.max_iter
        last = next((each for each in range(self._asks_in, end) if self.optimizer.meets(each)), end - 1)
        # Another rank may have had the signal earlier.
        return f"iteration {last}" + (" at the latest" if self.world.size > 1 else "")

    def _obey(self, flags: int) -> bool:
        """Does what a signal on any rank asked for, at the same step boundary on all. Returns False to stop."""
        if flags & SNAPSHOT and self._saved_at != self.iteration:
            self.snapshot()
        self.signals.clear(flags & SNAPSHOT)
        return not flags & STOP

    def step(self) -> None:
        """Makes one iteration: iter_size micro-batches and an update. The next forward waits for it, parameter by
        parameter."""
        self._begin_observing()
        self._recorder.begin(self.iteration)
        self.world.board.iteration(self.iteration)
        program, loss, iter_size = self.net.program, 0.0, self.iter_size
        for micro in range(iter_size):
            with self._recorder.wait("data"):
                first_sample = self.feeder.next(self.net)
            loss += self._forward(micro, first_sample)
            program = self.net.program  # a user's layers may have changed the net's shapes
            if micro == 0:
                with self._recorder.wait("all updates"):
                    self.optimizer.wait()  # nothing may still read the gradients
                if self.average:
                    self.average.catch_up()
                program.zero_gradients()
            if micro < iter_size - 1:
                program.mark_ready(False)
                program.backward()
                self._recorder.passed(self.net)
        iteration, samples = self.iteration, self.samples_per_iteration
        self.state.recent_loss.append(loss / iter_size)
        wanted = self.observers.wants_figures(iteration)
        if wanted:
            self._check_weights()
        showing = self.observers.wants_values(iteration)
        if showing and self.optimizer.sharding is None:  # sharded, no rank has all reduced gradients
            self.optimizer.keep_gradients()
        with self.optimizer.update(self.state, samples, self.average) as rate:
            program.mark_ready(self.on_gradients is None)
            program.backward()
            if self.on_gradients is not None:
                self.on_gradients()
                self.optimizer.release()
        self._recorder.passed(self.net)
        figures = self._figures() if wanted else None
        record = self._recorder.end(rate, self.state.loss, samples * self.calendar.rows, figures)
        self.observers.step(record)
        if showing:
            self.observers.values(self.optimizer.values(iteration))

    def _forward(self, micro: int, first_sample: int) -> float:
        """Runs the forward of one micro-batch. Returns this rank's loss. Raises NumericalError that names iteration and
        layer if it is not finite."""
        with self.feeder.naming(f"iteration {self.iteration}"):
            # Micro-batches are numbered by the samples before them, so that random numbers do not depend on iter_size.
            samples = self.first_sample + self.calendar.samples(self.iteration)
            before = samples * max(1, self.param.iter_size) // self.calendar.batch
            self.net.run_forward(Counters(self.iteration, first_sample, before + micro))
        loss = self.net.loss()
        self._require_finite(loss, self.optimizer)
        return loss

    def _require_finite(self, loss: float, optimizer: Optimizer) -> None:
        """Raises NumericalError that names iteration and layer if a loss is not finite. optimizer: of the net whose
        loss it is."""
        if not np.isfinite(loss):
            optimizer.wait()
            blame_loss(loss, self.iteration, optimizer.net, self.feeder.describe_batch)

    def _figures(self) -> Figures:
        return figures_of(self.net, self.state, self.world, in_step=self.optimizer.in_step)

    # Tests and snapshots

    def _snapshot_is_due(self) -> bool:
        """Tells whether a snapshot is due after the last iteration."""
        return self.calendar.is_due(self.iteration, self.param.snapshot, self.param.snapshot_epoch)

    def _display_is_due(self, iteration: int) -> bool:
        """Tells whether the display is due after an iteration; in mode ASYNC, where a rank skips iterations, also after
        one of those that it has skipped."""
        first = iteration if self.optimizer.in_step else self._before + 1
        display, epoch = self.param.display, self.param.display_epoch
        return any(self.calendar.is_due(each, display, epoch) for each in range(first, iteration + 1))

    def test(self) -> bool:
        """Runs all test nets on the weights, or on their average if there is one. BatchNorm's statistics are averaged
        over the ranks before. Returns False if a signal to any rank has broken it off; the next test then begins where
        this one did."""
        self._begin_observing()
        self.replica.settle()
        to_save = self.param.snapshot_after_train and self._saved_at != self.iteration
        otherwise = self._stops_by
        self._stops_by = "breaking off the test" + (", then a snapshot" if to_save else "")
        try:
            records = self.test_nets.run(
                self.iteration, self.average, self.model_parallel, lambda: bool(self.signals.flags & STOP)
            )
        except TestInterrupted:
            return False
        self._stops_by = otherwise
        for record in records:
            self.observers.test(record)
        if self.test_nets.goals.judge(self.state.goals, self.iteration, records):
            self._tell_saved(self.snapshots.best_name(self.iteration), self.snapshots.write_best(self.iteration))
        return True

    def snapshot(self) -> None:
        """Takes a snapshot. Raises, before anything is written, NumericalError if weights are infinite or NaN, and
        CommError if ranks differ: weights are not sent again, so that a difference would stay hidden."""
        self.replica.settle()
        self.replica.check(self.iteration)
        self._check_weights()
        losses = self.state.mean_recent_loss(self.world, in_step=self.optimizer.in_step)
        saved = self.state.save(losses)
        saved.random_seed, saved.ranks, saved.global_batch = self.seed, self.world.size, self.global_batch
        saved.kernels, saved.tuned = self.kernels.saved(), self._tuner.chosen if self._tuner else None
        saved.max_iter, saved.begun_from = self.param.max_iter, self.begun_from or None
        saved.max_epoch = self.given.max_epoch if self.given.HasField("max_epoch") else None
        saved.test_samples = self.test_nets.samples_to_save(self.iteration)
        if self.param.lr_policy != "plateau":  # which counts its steps in the state
            saved.current_step = current_step(self.param, self.iteration)
        self._tell_saved(self.snapshots.names(self.iteration)[0], self.snapshots.write(saved))
        self._saved_at = self.iteration

    def _tell_saved(self, path: Path, removed: Sequence[str]) -> None:
        self.observers.saved(self.iteration, str(path))
        for old in removed:
            self.observers.removed(old)

    def _check_weights(self) -> None:
        """Raises NumericalError if weights of a net are infinite or NaN."""
        for optimizer in self.optimizers:
            check_weights(optimizer.weights, self.iteration, optimizer.net)

    def _finish(self) -> bool:
        """Takes the last snapshot and test. Returns False if a signal has broken the test off."""
        if self._restored_at == self.iteration > self.param.max_iter:
            warn(
                f"Nothing to train: the snapshot is of iteration {self.iteration}, and max_iter is "
                f"{self.param.max_iter}; give a larger max_iter to go on"
            )
            return True
        self._stops_by = "the run is ending"
        stopped = self.test_nets.goals.is_patience_over(self.state.goals)
        if stopped:
            log(self.test_nets.goals.describe_stop(self.state.goals))
        self.optimizer.settle()
        # A snapshot of this iteration that was taken before the test does not know what early_stopping has seen in it.
        if self.param.snapshot_after_train and (stopped or self._saved_at != self.iteration):
            self.snapshot()
        loss = self.state.mean_loss(self.world)
        if not np.isnan(loss):
            log(f"Iteration {self.iteration}, loss = {loss:.6g}")
            self.observers.finished(self.iteration, loss)
        return not self.test_nets.evaluators or self.state.goals.last_judged == self.iteration or self.test()

    def _come_to_an_end(self) -> None:
        """Collective. Ends what needs all ranks, but for what observers still gather."""
        for optimizer in self.optimizers:
            optimizer.wait()
        log_skipped(self.world, self.feeders)
        if self._tuner:
            self._tuner.end()
        self.world.board.enter(board.END)

    def close(self) -> None:
        """Ends servers and data threads. Not to be called in a run that failed: that one aborts."""
        self.world.board.enter(board.END)
        self.feeder.close()
        for optimizer in self.optimizers:
            optimizer.close()
        self.test_nets.close()
        self.snapshots.close()
