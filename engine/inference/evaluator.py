"""Tests a net: averages its outputs over a number of batches, or over the whole set exactly once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from engine import proto
from engine.comm.preflight import compare_data
from engine.data.feeder import Feeder
from engine.data.prefetch import Batch
from engine.errors import shape_text
from engine.graph.build import ShapesOf
from engine.inference.by_sample import BySample
from engine.inference.detectors import DETECTORS, detectors_of
from engine.layers.kernels import Choices
from engine.net import DEFAULT, Counters, Net, NetOptions
from engine.net.kernel_table import Kernels
from engine.report.average_precision import Detections
from engine.report.log import log, warn
from engine.report.metrics import Averages, output_lines
from engine.report.progress import Progress

if TYPE_CHECKING:
    from engine.comm.world import World
    from engine.config import NetConfig
    from engine.layers.base import Layer, Shape

Outputs = dict[str, np.ndarray]  # by name, float64 (elements,)


def _with_batches(feeder: Feeder, besides: Callable[[int], Mapping[str, int]], learned: int) -> dict[str, int]:
    """Returns the bytes that a net takes besides its blobs: those of `besides`, and the batches of each data layer."""
    return {**besides(learned), **feeder.ring_bytes()}


class TestInterrupted(Exception):
    """A test was broken off, and has no result."""


class Evaluator:
    """Tests a net: holds its data, and divides its batches among the ranks.

    Ranks take the batches in turn, and results are summed in the order of batches. So the result does not depend on the
    number of ranks, unless a layer goes on from batch to batch. As in Caffe, a test of a number of batches begins where
    the one before it ended; `samples` is how many all such tests have read. It also begins with the next rank: where
    each has a source of its own, none is ahead of the others by more than a batch.
    """

    def __init__(
        self,
        config: NetConfig,
        world: World,
        options: NetOptions = DEFAULT,
        *,
        share: Net | None = None,
        make_feeder: Callable[..., Feeder] = Feeder,
        ap_version: str = "Integral",
        show_per_class: bool = False,
        index: int = 0,
        kernels: Kernels | None = None,
    ):
        """Builds the net, and compares the ranks' data. Raises ConfigErrors, DataError.

        Args:
            options: of the net; its shapes come from the data.
            share: the train net whose weights are tested; None: the net has weights of its own.
            make_feeder: makes what feeds the net, as Feeder does.
            ap_version: how the average precision of detectors is computed, a key of AP_VERSIONS.
            show_per_class: whether to give it for each class, too.
            index: of the net among the test nets of a solver.
            kernels: which kernels layers use, and whether they are measured.
        """
        self.world = world
        self.feeder = make_feeder(config, proto.TEST, options.seed, world)
        options = options.replace(
            besides=partial(_with_batches, self.feeder, options.besides),
            gradients=bool(options.gradients),  # only if a program asks for them, not for force_backward
        )
        self._config, self._options = config, options

        def make(choices: Choices) -> Net:
            self._options = options.replace(kernels=choices)
            return self._make_net(self.feeder.shapes_of, share)

        self.net = (kernels or Kernels()).build(make, world)
        compare_data(world, self.feeder.identities)
        self.number, self.samples = index + 1, 0
        self.net.set_board(world.board, self.number, self.feeder.sources)
        # Called after each forward with the net, the number of samples and their keys.
        self.on_forward: Callable[[Net, int, list[str]], None] | None = None
        self.by_sample = self._by_sample(config)
        self._small: tuple[int, Net] | None = None  # the net for the last batch of an epoch
        self.ap_version, self._show_per_class = ap_version, show_per_class
        self.detections: dict[str, Detections] = {}  # of the last test, by the detector's top; on rank 0
        self.detectors = detectors_of(self.net.graph)
        going_on = [layer.name for layer in self.net.graph.layers if layer.goes_on]
        if going_on and world.size > 1:
            warn(
                f"Layers that go on from batch to batch ({', '.join(going_on)}) see only their own rank's batches: "
                "test on one rank, unless all sequences begin with a batch"
            )

    def _make_net(self, shapes_of: ShapesOf, share: Net | None, before: Net | None = None, strict: bool = True) -> Net:
        options = self._options.replace(shapes_of=shapes_of)
        net = Net(self._config, proto.TEST, options, share=share, before=before, strict=strict)
        self.feeder.connect(net)
        return net

    def rebuild_net(self, config: NetConfig, strict: bool) -> Net:
        """Builds the net in other shapes, with the weights that it has, and returns it.

        Args:
            config: as the one that it was built from, but for shapes.
            strict: as in Net.
        """
        self._config, self._small = config, None
        self.net = self._make_net(self.feeder.shapes_of, self.net, self.net, strict)
        self.by_sample = self._by_sample(config)
        return self.net

    def _by_sample(self, config: NetConfig) -> BySample:
        return BySample(config, self.net.graph.outputs, self.feeder.shapes_for, self.feeder.batch_size)

    @property
    def scoring_net(self) -> Net:
        """The net whose losses and accuracies judge the samples."""
        return self.net

    @property
    def loss_weights(self) -> dict[str, float]:
        """Weights of the outputs that are losses, by name."""
        return {top: weight for _, top, weight in self.net.losses()}

    def run(
        self,
        iterations: int | None = None,
        on_batch: Callable[[int, Outputs], None] | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> Outputs:
        """Collective. Tests, and returns the averages of the outputs on all ranks.

        Args:
            iterations: number of batches; None: every sample once, each with the same weight.
            on_batch: is called with (k, outputs) on rank 0, in the order of k: after each batch on one rank, at the end
                on several, which keep all outputs until then.
            stop: is asked before each batch whether to break off.

        Raises:
            TestInterrupted: on all ranks, if stop() has broken off one. The next test begins where this one did.
            ConfigError: the data have no end, and `iterations` is None.
            DataError: an item cannot be read.
        """
        batches = self.feeder.epoch_batches() if iterations is None else iterations
        totals, mine, stopped = _Totals(self.detectors, self.by_sample), [], False

        def add(k: int, size: int, outputs: Outputs) -> None:
            figures = totals.add(size, outputs)
            if on_batch:
                on_batch(k, figures)

        self.world.board.net(self.number)
        for net in [self.net, self._small[1]] if self._small else [self.net]:
            net.program.parameters_changed()  # training has changed them
        try:
            for batch in self._batches(batches, iterations is None, stop):
                if self.world.size == 1:
                    add(*batch)
                else:
                    mine.append(batch)
        except TestInterrupted:
            stopped = True
        finally:
            self.feeder.stop()
        gathered, result = self.world.gather((stopped, mine)), None
        if gathered is not None and not any(stopped for stopped, _ in gathered):
            for batch in sorted(chain.from_iterable(batches for _, batches in gathered), key=lambda batch: batch[0]):
                add(*batch)
            self.detections = totals.detections
            result = {**totals.averages(), **self._precisions(totals.detections)}
        result = self.world.broadcast_object(result)
        self.world.board.net(0)
        if result is None:
            raise TestInterrupted
        self.samples += (iterations or 0) * self.feeder.batch_size
        return result

    def start(self) -> None:
        """Starts to read data from the sample at which the next test begins."""
        self.feeder.start(self.samples, self._first_rank)

    @property
    def _first_rank(self) -> int:
        """The rank that runs the first batch of the next test."""
        return self.samples // (self.feeder.batch_size or 1) % self.world.size

    def _batches(self, total: int, is_epoch: bool, stop: Callable[[], bool]) -> Iterator[tuple[int, int, Outputs]]:
        """Runs this rank's batches; yields (k, samples, outputs) of each. In an epoch it ends with this rank's data.
        Raises TestInterrupted."""
        rank, ranks = self.world.rank, self.world.size
        if is_epoch:
            self.feeder.start_epoch()
            k = rank
        else:
            self.start()
            k = (rank - self._first_rank) % ranks
        with Progress("Testing", total) as progress:
            while is_epoch or k < total:
                batch = self.feeder.take()
                if batch is None:
                    return
                if stop():
                    raise TestInterrupted
                yield k, batch.size or 1, self._forward(batch, k)
                progress.update(min(k + ranks, total))
                k += ranks

    def _forward(self, batch: Batch, k: int) -> Outputs:
        net = self.net if batch.size == self.feeder.batch_size else self._net_for(batch.size)
        first_sample = self.feeder.feed(net, batch)
        with self._naming(k):
            outputs = self._evaluate(net, Counters(k, first_sample))
        if self.on_forward is not None:
            self.on_forward(net, batch.size or 1, batch.keys)
        return {
            name: value if name in self.detectors else self.by_sample.averaged(name, value)
            for name, value in outputs.items()
        }

    def _naming(self, k: int) -> AbstractContextManager[None]:
        """Returns a context that adds the batch's number and its keys to an error. It surrounds only what computes
        batch k."""
        return self.feeder.naming(f"test batch {k}")

    def _evaluate(self, net: Net, counters: Counters) -> Outputs:
        """Runs a net. What ops remember from batch to batch is handed to the small net, and back."""
        if net is self.net:
            return net.evaluate(counters)
        net.program.succeed(self.net.program)
        outputs = net.evaluate(counters)
        self.net.program.succeed(net.program)
        return outputs

    def _net_for(self, size: int) -> Net:
        """Returns the net for a last batch of this size, which shares the weights."""
        if self._small is None or self._small[0] != size:
            self._small = size, self._make_net(self.feeder.shapes_for(size), self.net)
            self._small[1].set_board(self.world.board, self.number, self.feeder.sources)
        return self._small[1]

    def _precisions(self, detections: dict[str, Detections]) -> Outputs:
        """Returns the mean average precision of each detector, by the name of its top, and of its classes if asked
        for."""
        result = {}
        for name, found in detections.items():
            result[name] = np.array([found.mean(self.ap_version)])
            if self._show_per_class:
                for label, value in found.average_precisions(self.ap_version).items():
                    result[f"{name}_class{label}"] = np.array([value])
        return result

    def log_outputs(self, values: Outputs) -> None:
        """Logs Caffe's lines of a test in training."""
        for line in output_lines("Test", values, self.loss_weights):
            log(line)

    def close(self) -> None:
        self.feeder.close()


class _Totals:
    """Sums up a test. Batches are added in the order of their numbers, and need not be kept."""

    def __init__(self, detectors: Mapping[str, Layer], by_sample: BySample):
        self.detections = {name: Detections() for name in detectors}
        self._detectors, self._by_sample = detectors, by_sample
        self._averages, self._sizes = Averages(), set[int]()
        self._left_out: dict[str, Shape] = {}  # outputs that have no average over these batches

    def add(self, size: int, outputs: Outputs) -> Outputs:
        """Adds a batch of so many samples; returns its outputs that are no detections."""
        figures = {name: value for name, value in outputs.items() if name not in self._detectors}
        for name, layer in self._detectors.items():
            DETECTORS[layer.type].add(self.detections[name], layer, outputs[name])
        self._sizes.add(size)
        if len(self._sizes) > 1:
            shapes = {name: self._by_sample.grows_otherwise(name) for name in figures}
            self._left_out = {name: shape for name, shape in shapes.items() if shape is not None}
            self._averages.leave_out(self._left_out)
        self._averages.add({name: value for name, value in figures.items() if name not in self._left_out}, size)
        return figures

    def averages(self) -> Outputs:
        """Returns the averages. Warns of outputs that have none."""
        sizes = " and ".join(map(str, sorted(self._sizes, reverse=True)))
        for name, shape in self._left_out.items():
            warn(
                f"Output {name} ({shape_text(shape)}) is left out: it grows with the batch, but not by a row for each "
                f"sample, and has no average over batches of {sizes}"
            )
        return self._averages.result()
