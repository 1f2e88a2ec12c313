"""Adversarial training: a generator and a discriminator, each with updates of its own, in one run and one snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from engine.net import Counters, Net, NetOptions
from engine.report.log import log
from engine.report.observer import Figures
from engine.solver.adversarial_param import describe, of_discriminator, updates_of_discriminator
from engine.solver.optimizer import Optimizer
from engine.solver.solver import Solver
from engine.solver.state import TrainingState
from engine.solver.train_net import build_alike
from engine.solver.wiring import LOSS, MEETING, REAL, check_wiring, wire
from engine.watchdog import board

if TYPE_CHECKING:
    from engine.config import NetConfig, SolverConfig
    from engine.layers.base import Blob


def solver_of(config: SolverConfig, *arguments, **options) -> Solver:
    """Makes the solver that a solver's text asks for: an AdversarialSolver where it has `adversarial`, else a Solver.

    Takes the arguments of Solver and raises what it raises."""
    kind = AdversarialSolver if config.message.HasField("adversarial") else Solver
    return kind(config, *arguments, **options)


class AdversarialSolver(Solver):
    """Trains the two nets of a solver with `adversarial`.

    self.net is the joint net of wiring.py, and self.optimizer updates the generator in the Solver's own step. In the
    middle of that step's forward, when the generator has made its samples, the discriminator learns from them: its net
    reads copies of the joint net's blobs, and its own Optimizer reduces and updates while its backward runs.
    """

    def _train_config(self) -> NetConfig:
        self.wiring = wire(self.config)
        return self.wiring.joint

    def _build_net(self, config: NetConfig, options: NetOptions) -> Net:
        check_wiring(self.config, self.wiring, self.feeder.shapes_of)
        plain = options.replace(shapes_of=None, accumulate=True)
        self.discriminator = build_alike(self.wiring.discriminator, plain, self.world, self.feeder, self.kernels)
        options = options.replace(frozen=self.wiring.frozen, watched_layers=frozenset([MEETING]))
        net = build_alike(config, options, self.world, self.feeder, self.kernels, share=self.discriminator)
        self._connect(net)
        return net

    def _connect(self, net: Net) -> None:
        """Finds the blobs of the joint net that are fed to each input of the discriminator, real ones and made ones,
        and the two halves of the joint net: the layers that make samples, and the layers that judge them."""
        meeting = next(i for i, layer in enumerate(net.graph.layers) if layer.name == MEETING)
        self._making, self._judging = slice(0, meeting), slice(meeting, None)
        message, bottoms = net.graph.layers[meeting].message, net.graph.layers[meeting].bottoms
        read = dict(zip(message.bottom, bottoms, strict=True))
        inputs = {blob.name: blob for blob in self.discriminator.inputs}
        self._is_real = np.zeros(1, np.float32)
        self.discriminator.feed(inputs[REAL], self._is_real)
        self._met: dict[bool, list[tuple[Blob, Blob]]] = {
            real: [(read[meet.real if real else meet.made], inputs[meet.input]) for meet in self.wiring.meets]
            for real in (True, False)
        }
        self._scored = self.discriminator.blobs[LOSS].tensor
        # The discriminator's last loss on this rank, on real samples (True) and on made ones; empty before its first
        # turn.
        self.judged: dict[bool, float] = {}

    def _other_optimizers(self) -> list[Optimizer]:
        """Returns the discriminator's optimizer, whose state counts the discriminator's own updates."""
        param, place = of_discriminator(self.param), self.config.place("adversarial.discriminator_solver")
        self.opponent = Optimizer(self.discriminator, param, self.world, where=place, number=board.DISCRIMINATOR)
        self.opponent_state = TrainingState.new(1)
        return [self.opponent]

    @property
    def samples_per_iteration(self) -> int:
        """Samples of all ranks: each update of the discriminator takes a batch, and the generator the last of these."""
        return super().samples_per_iteration * self.param.adversarial.discriminator_steps

    def _samples_of(self, iterations: int) -> int:
        return super()._samples_of(iterations) * self.param.adversarial.discriminator_steps

    def solve(self) -> bool:
        log(f"Against {self.wiring.discriminator.path}: {describe(self.param)}")
        return super().solve()

    def restore(self, path: str) -> None:
        super().restore(path)
        self.judged.clear()  # these losses were of other samples
        state = self.opponent_state
        state.iteration = updates_of_discriminator(self.param, self.iteration)
        if state.iteration:
            state.last_rate = self.opponent.rate(state.iteration - 1)

    def _forward(self, micro: int, first_sample: int) -> float:
        """Makes samples, teaches the discriminator if this is its turn (for each further update with a further batch),
        and lets it judge the last samples. Returns the generator's loss. Raises NumericalError."""
        adversarial = self.param.adversarial
        if self.iteration % adversarial.generator_steps:
            return super()._forward(micro, first_sample)
        # Passes that have made samples so far, in all stages: iterations without the discriminator have one, too.
        before = self.first_sample // self.calendar.batch + self.iteration * adversarial.discriminator_steps
        for turn in range(adversarial.discriminator_steps):
            if turn:
                with self._recorder.wait("data"):
                    first_sample = self.feeder.next(self.net)
            counters = Counters(self.iteration, first_sample, before + turn)
            with self.feeder.naming(f"iteration {self.iteration}"):
                self.net.run_forward(counters, self._making)
            self._teach(counters)
        self.opponent.wait()  # the joint net reads the same weights
        self.world.board.net(0)
        with self.feeder.naming(f"iteration {self.iteration}"):
            self.net.run_forward(counters, self._judging)
        loss = self.net.loss()
        self._require_finite(loss, self.optimizer)
        return loss

    def _teach(self, counters: Counters) -> None:
        """Updates the discriminator once, by the mean gradient of a pass on real samples and one on made samples."""
        program = self.discriminator.program
        self.world.board.net(board.DISCRIMINATOR)
        self._judge(True, counters)
        self.opponent.wait()  # nothing may still read the gradients
        program.zero_gradients()
        program.mark_ready(False)
        program.backward()
        self._judge(False, counters)
        with self.opponent.update(self.opponent_state, 0):
            program.mark_ready(True)
            program.backward()
        self.world.board.net(0)

    def _judge(self, real: bool, counters: Counters) -> None:
        """Runs the discriminator's forward on real or made samples and keeps its loss. Raises NumericalError."""
        net = self.discriminator
        for blob, given in self._met[real]:
            self.net.tensors[blob].convert(net.tensors[given])
        self._is_real[0] = real
        net.run_forward(counters)
        self.judged[real] = loss = float(self._scored.get().sum())
        self._require_finite(loss, self.opponent)

    def _figures(self) -> Figures:
        """Returns the Solver's figures and the discriminator's losses, as means over the ranks. A run that goes on from
        a snapshot has no such losses before the discriminator's first turn."""
        figures = super()._figures()
        names = {"discriminator_loss_real": True, "discriminator_loss_made": False}
        outputs = {name: np.array([self.judged[real]]) for name, real in names.items() if real in self.judged}
        for values in outputs.values():
            self.world.allreduce(values)
            values /= self.world.size
        return Figures(figures.loss, {**figures.outputs, **outputs}, figures.loss_weights)
