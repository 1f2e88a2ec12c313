"""The TrainingState: how far a run has come. A solver holds it, and snapshots save it beside weights and history."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from engine.weights import SolverState

if TYPE_CHECKING:
    from engine.comm.world import World


@dataclass
class PlateauState:
    """What lr_policy "plateau" remembers, under the names of SolverState's fields."""

    current_step: int = 0
    minimum_loss: float = 1e38
    iter_last_event: int = 0


@dataclass
class GoalsState:
    """What snapshot_best and early_stopping remember, under the names of SolverState's fields."""

    best_value: float | None = None
    best_iteration: int | None = None
    stopping_value: float | None = None
    tests_without_gain: int | None = None
    last_judged: int | None = None
    best_goal: str | None = None
    stopping_goal: str | None = None


@dataclass
class TrainingState:
    """How far a run has come.

    iteration: updates begun so far. samples_seen: the position in the global sequence of samples. recent_loss: this
    rank's losses of the last average_loss iterations, oldest first. last_rate: the learning rate of the last update."""

    iteration: int = 0
    samples_seen: int = 0
    recent_loss: deque[float] = field(default_factory=lambda: deque(maxlen=1))
    last_rate: float | None = None
    plateau: PlateauState = field(default_factory=PlateauState)
    goals: GoalsState = field(default_factory=GoalsState)

    @classmethod
    def new(cls, average_loss: int) -> TrainingState:
        """Returns the state before the first iteration."""
        return cls(recent_loss=deque(maxlen=max(1, average_loss)))

    @property
    def loss(self) -> float:
        """The smoothed loss of this rank; NaN before the first."""
        return sum(self.recent_loss) / len(self.recent_loss) if self.recent_loss else float("nan")

    def mean_loss(self, world: World) -> float:
        """Collective. Returns the smoothed loss, averaged over the ranks that have one: in mode ASYNC some may not have
        made a step yet. NaN if none has one."""
        has_one = bool(self.recent_loss)
        total = np.array([self.loss if has_one else 0.0, float(has_one)])
        world.allreduce(total)
        return float(total[0] / total[1]) if total[1] else float("nan")

    def mean_recent_loss(self, world: World, in_step: bool) -> list[float]:
        """Collective. Returns recent_loss, averaged over the ranks. Where ranks are not in step their lists differ in
        length and are averaged from the newest loss backwards, and only rank 0's result counts."""
        if in_step:
            losses = np.array(self.recent_loss)
            world.allreduce(losses)
            return (losses / world.size).tolist()
        windows = world.gather(list(self.recent_loss)) or []
        longest = max(map(len, windows), default=0)
        return [float(np.mean([each[-k] for each in windows if len(each) >= k])) for k in range(longest, 0, -1)]

    def copy(self) -> TrainingState:
        """Returns a copy that does not change with this state."""
        own = {"recent_loss": self.recent_loss.copy(), "plateau": replace(self.plateau), "goals": replace(self.goals)}
        return replace(self, **own)

    def take(self, other: TrainingState) -> None:
        """Takes over the values of `other`, which does not change with this state later."""
        vars(self).update(vars(other.copy()))

    def advance(self, samples: int) -> None:
        """Counts an iteration. samples: in it, over all ranks."""
        self.iteration += 1
        self.samples_seen += samples

    def restore(self, saved: SolverState, samples: int) -> None:
        """Takes over a snapshot's state. samples: seen in as many iterations of this solver; counts if the snapshot
        does not say how many its run had seen, as Caffe's do not."""
        self.iteration = saved.iteration
        self.samples_seen = samples if saved.samples_seen is None else saved.samples_seen
        self.recent_loss.clear()
        self.recent_loss.extend(saved.recent_loss)
        self.last_rate = saved.last_rate
        self.plateau = PlateauState(saved.current_step, saved.minimum_loss, saved.iter_last_event)
        self.goals = GoalsState(**{name: getattr(saved, name) for name in GoalsState.__dataclass_fields__})

    def save(self, recent_loss: list[float]) -> SolverState:
        """Returns a SolverState without history and weights. recent_loss: see mean_recent_loss()."""
        return SolverState(
            iteration=self.iteration,
            samples_seen=self.samples_seen,
            recent_loss=recent_loss,
            last_rate=self.last_rate,
            current_step=self.plateau.current_step,
            minimum_loss=self.plateau.minimum_loss,
            iter_last_event=self.plateau.iter_last_event,
            **vars(self.goals),
        )
