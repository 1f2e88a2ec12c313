"""What all ranks have alike: the weights, what their updates remember, and the weights' average."""

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
    """This rank's copy of it. is_shared: all ranks have begun with rank 0's; False again after files were read, which
    rank 0 does. check_every: iterations, 0 for never."""

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
        """Collective. Broadcasts rank 0's, except for the parts of layers that are a rank's own. Only where that is not
        done yet: ranks that train have statistics, and perhaps weights, of their own."""
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
        """Views, float32, of all that a rank begins an iteration with."""
        arenas, others = self._arrays()
        return arenas + others

    def _arrays(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Those that are laid out as arenas of weights; and what does not learn, where statistics become a rank's
        own."""
        arenas, others = [], []
        for optimizer in self._optimizers:
            sharded = optimizer.sharding is not None  # then each rank has its share of the history by now
            arenas += [optimizer.weights, *([] if sharded else optimizer.history.arrays)]
            others.append(np.asarray(optimizer.net.fixed, np.float32))
        if self._average:
            arenas.append(self._average.weights)
            others += self._average.statistics()
        return arenas, others

    def settle(self) -> None:
        """Collective. Every update is in the weights, which are the same on all ranks, and statistics are the ranks'
        mean."""
        for optimizer in self._optimizers:
            optimizer.settle()
            self._world.allreduce_mean(optimizer.net.statistics())
        if self._average:
            self._average.catch_up()
            self._average.gather()
            self._world.allreduce_mean(self._average.statistics())
            if self._optimizers[0].is_local:  # each rank's average is of other weights
                self._world.allreduce(self._average.weights)
                self._average.weights /= self._world.size

    def check_if_due(self, iteration: int) -> None:
        """Collective. check() after every so many iterations; where ranks update by themselves, as soon as they have
        averaged."""
        self._check_is_due |= self._check_every > 0 and iteration % self._check_every == 0
        if self._check_is_due and not self._optimizers[0].apart:
            self.check(iteration)

    def check(self, iteration: int) -> None:
        """Collective. Raises CommError when weights or optimizer state of two ranks are not the same bits."""
        self._check_is_due = False
        for optimizer in self._optimizers:
            optimizer.wait()
            histories = {} if optimizer.sharding else optimizer.history.named  # each rank has another share
            check_drift(self._world, optimizer.net, optimizer.weights, histories, iteration)
