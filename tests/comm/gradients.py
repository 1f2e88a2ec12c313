"""Shared by the tests of strategies: a run that has gradients but no net, and its result by NumPy.

Ranks import this module. It leaves out pytest, which takes as long to load as all the rest.
"""

import functools
import hashlib

import numpy as np
from google.protobuf import text_format

from engine import proto
from engine.comm.buckets import make_buckets, parameter_ranges
from engine.comm.factory import settings_of, strategy_of
from engine.comm.strategies.strategy import Step
from engine.comm.world import World
from engine.host import _core

SIZES = [5000, 37, 12000, 9, 60000, 640]  # large parameters are divided among buckets, small ones share one
STEPS = 6


@functools.cache
def mean_of(samples: range, step: int, size: int) -> np.ndarray:
    """Returns the mean of the gradients of these samples."""
    return np.mean([np.random.default_rng((step, i)).standard_normal(size) for i in samples], axis=0)


class Run:
    """Trains parameters of SIZES with gradients from a seeded generator, whose mean over ranks is known, in place of a
    net."""

    def __init__(self, world: World, clip: float = 0.0, iter_size: int = 1, threads: int = 1, comm: str = ""):
        self.world, self.clip, self.iter_size = world, clip, iter_size
        parameters, offset = [], 0
        for i, size in enumerate(SIZES):
            parameters.append((f"p{i}", offset, size))
            offset += -(-size // 16) * 16
        self.buckets = make_buckets(parameters, bucket_bytes=40_000)
        self.weights = np.linspace(-1, 1, offset, dtype=np.float32)
        self.gradients = np.zeros(offset, np.float32)
        self.history = np.zeros(offset, np.float32)
        ranges = parameter_ranges(self.buckets, {"p1": (2.0, 0.0)})
        self.queue = _core.ReadyQueue(len(self.buckets))
        constants, arrays = {"momentum": 0.9}, (self.weights, self.gradients, [self.history])
        updater = _core.Updater("SGD", *arrays, ranges, constants, weight_decay=0.01)
        settings = settings_of(world, text_format.Parse(comm, proto.CommParameter()))
        how = self.queue, updater, self.buckets, self.gradients, settings
        chosen, state = strategy_of(world, settings, self.buckets), [self.weights, self.history]
        self.strategy = chosen(world, *how, threads=threads, state=state)

    def gradient(self, step: int, part: int, parts: int) -> np.ndarray:
        """Returns the mean gradient of slice `part` of the 12 samples, which are cut into `parts` slices. The mean of
        all slices does not depend on `parts`."""
        return mean_of(range(part * 12 // parts, (part + 1) * 12 // parts), step, self.gradients.size)

    def steps(self, steps: int = STEPS) -> None:
        """Takes steps as a solver does, with gradients in place of backward."""
        for step in range(steps):
            for bucket in reversed(self.buckets):
                self.queue.wait_done(bucket.index)
            parts = self.world.size * self.iter_size
            # The micro-batches of this rank. The mean over ranks is the same for any number of ranks and of
            # micro-batches.
            self.gradients[:] = sum(
                self.gradient(step, self.world.rank * self.iter_size + micro, parts) for micro in range(self.iter_size)
            )
            self.strategy.start(Step(step, 0.1 / (step + 1), self.iter_size, self.clip))
            for bucket in self.buckets:
                self.queue.ready(bucket.index)
            self.strategy.backward_done()
        self.strategy.wait_all()

    def constants(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns three values for each float: the factor of its rate, its weight decay, and whether it belongs to a
        parameter."""
        count = self.weights.size
        rate, decay, used = np.ones(count), np.full(count, 0.01), np.zeros(count, bool)
        for bucket in self.buckets:
            for one in bucket.ranges:
                used[one.begin : one.end] = True
                if one.name == "p1":
                    rate[one.begin : one.end], decay[one.begin : one.end] = 2, 0
        return rate, decay, used

    def digest(self) -> str:
        """Returns a digest of weights and history."""
        return hashlib.sha256(self.weights.tobytes() + self.history.tobytes()).hexdigest()


@functools.cache
def reference(clip: float = 0.0) -> np.ndarray:
    """Returns the weights after the same run on one rank, in float64 by NumPy."""
    run = Run(World())
    weights, history = run.weights.astype(np.float64), np.zeros(run.weights.size)
    rate, decay, used = run.constants()
    for step in range(STEPS):
        gradient = np.where(used, run.gradient(step, 0, 1), 0)
        norm = np.sqrt((gradient**2).sum())
        gradient *= clip / norm if 0 < clip < norm else 1
        history = 0.9 * history + 0.1 / (step + 1) * rate * (gradient + decay * weights)
        weights = np.where(used, weights - history, weights)
    return weights
