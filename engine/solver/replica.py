"""What is the same on all ranks: the weights, the optimizer's history, and the average of the weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from engine.solver.drift import check_drift

if TYPE_CHECKING:
    from engine.comm.world import World
    from engine.solver.ema import WeightAverage
    from engine.solver.model_parallel import ModelParallel
    from engine.solver.optimizer import Optimizer


class Replica:
    """This rank's copy of what is the same on all ranks.

    is_shared: whether all ranks have rank 0's values. False at first, and again after rank 0 has read a file.
    check_every: iterations between two checks for drift; 0: no checks."""

    def __init__(
        self,
        world: World,
        optimizers: Sequence[Optimizer],
        average: WeightAverage | None,
        model_parallel: ModelParallel,
        check_every: int,
    ):
        self._world, self._optimizers, self._average = world, optimizers, average
        self._model_parallel = model_parallel
        self.is_shared = False
        self._check_every, self._check_is_due = check_every, False

    def share(self) -> None:
        """Collective. Broadcasts rank 0's values, except for the parts of layers, of which each rank has its own.

        Does nothing if all ranks have them already: in training ranks get statistics, and perhaps weights, of their
        own, which must stay."""
        if self.is_shared:
            return
        arenas, others = self._arrays()
        with self._model_parallel.kept(arenas):
            for array in (*arenas, *others):
                self._world.broadcast(array)
        for optimizer in self._optimizers:
            optimizer.take_over_weights()
        self.is_shared = True

    def arrays(self) -> list[np.ndarray]:
        """Returns float32 views of everything with which a rank begins an iteration."""
        arenas, others = self._arrays()
        return arenas + others

    def _arrays(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Returns the same views in two lists: those that are laid out as arenas of weights, and those of parameters
        that do not learn, such as statistics, which training makes each rank's own."""
        arenas, others = [], []
        for optimizer in self._optimizers:
            sharded = optimizer.sharding is not None  # then each rank has a share of the history that no other has
            arenas += [optimizer.weights, *([] if sharded else optimizer.history.arrays)]
            others.append(np.asarray(optimizer.net.fixed, np.float32))
        if self._average:
            arenas.append(self._average.weights)
            others += self._average.statistics()
        return arenas, others

    def settle(self) -> None:
        """Collective. Waits for all updates, and makes weights, statistics and their average the same on all ranks: the
        ranks' mean, where they differ."""
        for optimizer in self._optimizers:
            optimizer.settle()
            self._world.allreduce_mean(optimizer.net.statistics())
        if self._average:
            self._average.catch_up()
            self._average.gather()
            self._world.allreduce_mean(self._average.statistics())
            if self._optimizers[0].is_local:  # each rank has averaged weights of its own
                self._world.allreduce(self._average.weights)
                self._average.weights /= self._world.size

    def check_if_due(self, iteration: int) -> None:
        """Collective. Calls check() every check_every iterations; where ranks update by themselves, when they have next
        averaged."""
        self._check_is_due |= self._check_every > 0 and iteration % self._check_every == 0
        if self._check_is_due and not self._optimizers[0].apart:
            self.check(iteration)

    def check(self, iteration: int) -> None:
        """Collective. Raises CommError if weights or history are not the same bits on all ranks."""
        self._check_is_due = False
        for optimizer in self._optimizers:
            optimizer.wait()
            histories = {} if optimizer.sharding else optimizer.history.named  # each rank has another share
            check_drift(self._world, optimizer.net, optimizer.weights, histories, iteration)
