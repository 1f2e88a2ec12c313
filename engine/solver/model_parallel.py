"""Model parallelism in the solver: gathers the parts of layers that ranks hold, for snapshots and test nets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from engine.errors import ConfigError

if TYPE_CHECKING:
    from engine import proto
    from engine.comm.world import World
    from engine.layers.base import Parameter
    from engine.net import Net, Placed
    from engine.solver.history import History


class ModelParallel:
    """The parameters of a net that ranks hold in parts. False if there are none: then the methods do nothing.

    divided: those parameters, in backward's order."""

    def __init__(self, net: Net, world: World):
        self.net, self.world = net, world
        self.divided: list[Placed] = [placed for placed in net.parameters if placed.parameter.parts > 1]

    def __bool__(self) -> bool:
        return bool(self.divided)

    def describe(self) -> str:
        """Returns what the log says, such as "fc6, fc7 in 2 parts"."""
        layers: dict[int, list[str]] = {}
        for placed in reversed(self.divided):  # in forward's order
            names = layers.setdefault(placed.parameter.parts, [])
            if placed.parameter.layer not in names:
                names.append(placed.parameter.layer)
        return "; ".join(f"{', '.join(names)} in {parts} parts" for parts, names in layers.items())

    def refuse(self, param: proto.SolverParameter, where: Callable[[str], str]) -> None:
        """Raises ConfigError for fields that need the norm of all gradients, which no rank has."""
        for field in ("clip_gradients", "local_lr_auto", "larc"):
            if self.divided and getattr(param, field) > 0:
                raise ConfigError(
                    f"{field} does not go together with model_parallel: take one of them out", where(field)
                )

    def gather(self, values_of: Callable[[Placed], np.ndarray]) -> dict[Parameter, np.ndarray]:
        """Collective. Returns the whole arrays of the divided parameters on rank 0; {} on other ranks.

        values_of: returns this rank's part of a parameter's values."""
        found = {}
        for placed in self.divided:
            parameter = placed.parameter
            mine = values_of(placed) if self.world.rank < parameter.parts else np.empty(0, np.float32)
            parts = self.world.gather_array(mine)
            if parts:
                found[parameter] = np.concatenate(parts).reshape(parameter.whole_shape)
        return found

    def weights(self) -> dict[Parameter, np.ndarray]:
        """Collective. Returns the whole weights of the divided parameters on rank 0; {} on other ranks."""
        return self.gather(lambda placed: placed.tensor.get())

    def histories(self, history: History) -> list[dict[Parameter, np.ndarray]]:
        """Collective. Returns the same of each set of the history."""
        return [self.gather(partial(history.values, number)) for number in range(len(history.arrays))]

    @contextmanager
    def kept(self, arenas: list[np.ndarray]) -> Iterator[None]:
        """Restores this rank's parts at the end of the context, whatever was written to the arenas inside it."""
        ranges = [slice(placed.offset, placed.offset + placed.count) for placed in self.divided]
        before = [[arena[part].copy() for part in ranges] for arena in arenas]
        yield
        for arena, values in zip(arenas, before, strict=True):
            for part, value in zip(ranges, values, strict=True):
                arena[part] = value

    def copy_to(self, net: Net) -> None:
        """Collective. Copies the whole weights into a net that is not divided, on every rank."""
        whole = self.weights()
        tensors = {(p.layer, p.index): tensor for p, tensor in net.tensor_of.items()}
        for placed in self.divided:
            parameter = placed.parameter
            values = whole.get(parameter, np.empty(parameter.whole_shape, np.float32))
            self.world.broadcast(values)
            tensors[parameter.layer, parameter.index].set(values.ravel())
