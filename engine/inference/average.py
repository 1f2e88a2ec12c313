"""Averages the weights of several files of one net, and finds BatchNorm's statistics for the average."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from engine import proto
from engine.data.feeder import Feeder
from engine.errors import WeightsError, shape_text
from engine.inference.trained import listed, require_all
from engine.layers.batch_norm import BatchNorm
from engine.net import Counters, Net, NetOptions
from engine.report.progress import Progress
from engine.weights import read_caffemodel

if TYPE_CHECKING:
    from engine.comm.world import World
    from engine.config import NetConfig

Blobs = dict[str, list[np.ndarray]]


def average_files(paths: Sequence[str]) -> Blobs:
    """Returns the mean of each blob over files, summed in float64. Raises WeightsError if they are not of one net."""
    first, *others = paths
    total = {layer: [_whole(first, layer, blob) for blob in blobs] for layer, blobs in read_caffemodel(first).items()}
    for path in others:
        found = read_caffemodel(path)
        for one, other, lacking in ((first, path, total.keys() - found.keys()), (path, first, found.keys() - total)):
            if lacking:
                layers = listed(sorted(lacking))
                raise WeightsError(
                    f"has layers that {other} lacks: {layers}; only files of one net have an average", one
                )
        for layer, sums in total.items():
            blobs = [_whole(path, layer, blob) for blob in found[layer]]
            shapes = [" and ".join(shape_text(blob.shape) for blob in each) for each in (sums, blobs)]
            if shapes[0] != shapes[1]:
                raise WeightsError(f"layer '{layer}': {first} has {shapes[0]}, this file {shapes[1]}", path)
            for one, other in zip(sums, blobs, strict=True):
                one += other
    return {layer: [(each / len(paths)).astype(np.float32) for each in sums] for layer, sums in total.items()}


def _whole(path: str, layer: str, blob: np.ndarray | None) -> np.ndarray:
    if blob is None:
        raise WeightsError(f"layer '{layer}' shares a blob with another layer, which engine average does not do", path)
    return blob.astype(np.float64)


def has_statistics(blobs: Blobs) -> bool:
    """Returns whether some layer looks like a BatchNorm: its blobs are two vectors of one size and a single number, and
    perhaps scale and shift (scale_bias)."""
    shapes = [[blob.shape for blob in each] for each in blobs.values()]
    return any(len(each) in (3, 5) and each[0] == each[1] and each[2] == (1,) for each in shapes)


class Averaged:
    """A net in phase TRAIN with averaged weights. Raises ConfigErrors, DataError, WeightsError."""

    def __init__(
        self,
        config: NetConfig,
        blobs: Blobs,
        source: str,
        world: World,
        options: NetOptions,
        make_feeder: Callable[..., Feeder] = Feeder,
    ):
        """Builds the net, and gives it the weights.

        Args:
            blobs: the averaged weights.
            source: where they come from, for messages.
            make_feeder: makes what feeds the net, as Feeder does.
        """
        self._world = world
        self._feeder = make_feeder(config, proto.TRAIN, options.seed, world)
        options = options.replace(
            shapes_of=self._feeder.shapes_of, gradients=False, passes=options.passes - {"constant"}
        )
        self.net = Net(_summing(config), proto.TRAIN, options)
        require_all(self.net.load_weights(blobs, source), source, f"{config.path} has them")
        layers = {layer.name: layer for layer in self.net.graph.layers if isinstance(layer, BatchNorm)}
        moving = {name for name, layer in layers.items() if not layer.use_global_stats}
        self._statistics = [
            self.net.tensor_of[each] for each in self.net.graph.params if each.statistics and each.layer in moving
        ]

    @property
    def has_statistics(self) -> bool:
        """Whether there are statistics to recompute."""
        return bool(self._statistics)

    def recompute(self, iterations: int | None) -> int:
        """Collective. Sets BatchNorm's statistics to their mean over batches; returns how many these were on all ranks.
        Raises ConfigError if `iterations` is None and the data have no end.

        Args:
            iterations: number of batches on all ranks together; None: those of one epoch.
        """
        feeder, world = self._feeder, self._world
        batches = iterations or feeder.epoch_batches()
        if not iterations and feeder.own_items:
            batches *= world.size  # so that `mine` has as many batches as this rank has of its own items
        mine = range(world.rank, batches, world.size)
        sums = [np.zeros_like(tensor.get(), np.float64) for tensor in self._statistics]
        feeder.start()
        with contextlib.closing(feeder), Progress("Recomputing statistics", batches) as progress:
            for k in mine:
                self._fill([np.zeros_like(each) for each in sums])
                first_sample = feeder.next(self.net)
                with feeder.naming(f"batch {k}"):
                    self.net.run_forward(Counters(k, first_sample))
                for total, tensor in zip(sums, self._statistics, strict=True):
                    total += tensor.get()
                progress.update(min(k + world.size, batches))
        done = np.array([len(mine)])
        for total in (*sums, done):
            world.allreduce(total)
        self._fill([total / done[0] for total in sums])
        return int(done[0])

    def _fill(self, values: Sequence[np.ndarray]) -> None:
        for tensor, array in zip(self._statistics, values, strict=True):
            tensor.set(np.ascontiguousarray(array, np.float32).ravel())


def _summing(config: NetConfig) -> NetConfig:
    """Returns the net with BatchNorm whose statistics, set to 0 before a forward pass, are this rank's batch's after
    it."""
    net = proto.NetParameter()
    net.CopyFrom(config.message)
    net.bn_sync = False
    for layer in net.layer:
        if layer.type == "BatchNorm":
            layer.batch_norm_param.moving_average_fraction = 1
            layer.batch_norm_param.sync = False
        elif layer.type == "BN":
            layer.bn_param.momentum = 0
    return config.with_message(net)
