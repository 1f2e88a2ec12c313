"""Scores an ensemble: several weights of one net, and the average of their probabilities, in one pass over the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from engine import proto
from engine.data.feeder import Feeder
from engine.data.prefetch import Batch
from engine.errors import ConfigError
from engine.graph.build import ShapesOf, build
from engine.graph.graph import Graph
from engine.inference.by_sample import BySample
from engine.inference.evaluator import Evaluator, Outputs
from engine.inference.scoring import Cut, cut
from engine.inference.trained import load, require_all
from engine.inference.views import Views
from engine.net import DEFAULT, Counters, Net, NetOptions
from engine.net.kernel_table import Kernels
from engine.report.table import table
from engine.weights import read_caffemodel

if TYPE_CHECKING:
    from engine.comm.world import World
    from engine.config import NetConfig


class _Built(NamedTuple):
    """The nets for one size of batch."""

    members: list[Net]  # each without the scoring layers
    head: Net  # the scoring layers


class Ensemble(Evaluator):
    """Tests the members of an ensemble and their average on the data of one net.

    The net's own losses and accuracies score the average: in place of scores, a SoftmaxWithLoss, a Softmax or an
    Accuracy reads the logarithm of the average probability, which a softmax turns into that probability again. With
    several members, run() returns (rows, elements) for each output: a row for each member, then one for their average
    if the output is computed from probabilities. With one member, whose views are averaged, it returns what Evaluator
    does.
    """

    def __init__(
        self,
        config: NetConfig,
        members: Sequence[Sequence[str]],
        world: World,
        options: NetOptions = DEFAULT,
        *,
        views: Views | None = None,
        make_feeder: Callable[..., Feeder] = Feeder,
        kernels: Kernels | None = None,
    ):
        """Builds the members and gives them their weights. Raises ConfigError for a net without probabilities,
        WeightsError for weights of another net.

        Args:
            members: the files of weights of each member.
            views: of each picture, over which each member is averaged first.
            options, make_feeder, kernels: see Evaluator.
        """
        self._views = views or Views(config)
        config = self._views.config
        opened = make_feeder(config, proto.TEST, options.seed, world)
        try:
            graph = build(config, proto.TEST, shapes_of=self._views.shapes_of(opened.shapes_of))
            self._cut = cut(config, graph)
            if self._views.count > 1:
                _require_one_answer(self._cut, graph, config.path)
            super().__init__(self._cut.body, world, options, make_feeder=lambda *_: opened, kernels=kernels)
            self.by_sample = BySample(
                config, graph.outputs, lambda size: self._views.shapes_of(opened.shapes_for(size)), opened.batch_size
            )
            self._members = [self.net, *(self._make_net(opened.shapes_of, None) for _ in members[1:])]
            for net, files in zip(self._members, members, strict=True):
                _load_member(net, files, alone=len(members) == 1)
                net.program.parameters_changed()
            self._built = {opened.batch_size: self._with_head(self._members)}
            copies = {self._cut.copy_of(blob) for blob in self._cut.read}
            given = {top.name for layer in self.net.graph.layers if not layer.bottoms for top in layer.tops}
            # Outputs of members that do not come from probabilities, and so have no average. Detections are no figures.
            outputs = [blob.name for blob in self.net.graph.outputs]
            self._others = [name for name in outputs if name not in copies | given | self.detectors.keys()]
            self.detectors = {}
        except BaseException:
            opened.close()
            raise

    def _make_net(self, shapes_of: ShapesOf, share: Net | None, before: Net | None = None) -> Net:
        return super()._make_net(self._views.shapes_of(shapes_of), share, before)

    def _with_head(self, members: list[Net]) -> _Built:
        shapes = {blob: members[0].blobs[self._cut.copy_of(blob)].shape for blob in self._cut.read}
        return _Built(members, Net(self._cut.head_net(shapes), proto.TEST, self._options.replace(precision="fp32")))

    @property
    def scoring_net(self) -> Net:
        """The net whose losses and accuracies score the average."""
        return next(iter(self._built.values())).head

    @property
    def loss_weights(self) -> dict[str, float]:
        return {top: weight for net in (self.net, self.scoring_net) for _, top, weight in net.losses()}

    def run(
        self,
        iterations: int | None = None,
        on_batch: Callable[[int, Outputs], None] | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> Outputs:
        """Collective. See the class for what it returns, Evaluator.run() for the rest."""
        found, count = super().run(iterations, on_batch, stop), len(self._members)
        if count == 1:
            return found
        return {name: value.reshape(count + (name not in self._others), -1) for name, value in found.items()}

    def _forward(self, batch: Batch, k: int) -> Outputs:
        size = batch.size or self.feeder.batch_size
        if size not in self._built:
            shapes_of = self.feeder.shapes_for(size)
            self._built[size] = self._with_head([self._make_net(shapes_of, net) for net in self._members])
        members, head = self._built[size]
        answers: list[list[Outputs]] = [[] for _ in members]  # by member and view
        for view in self._views.of(batch):
            for net, given in zip(members, answers, strict=True):
                first_sample = self.feeder.feed(net, view)
                with self._naming(k):
                    given.append(net.evaluate(Counters(k, first_sample)))
        with self._naming(k):
            scored = [self._scored(head, given) for given in answers]
            if len(members) > 1:
                scored.append(self._scored(head, [each for given in answers for each in given]))
        if self.on_forward is not None:
            self.on_forward(head, size, batch.keys)  # the head's last forward was of the average
        rows = {name: np.stack([row[name] for row in scored]) for name in scored[0]}
        for name in self._others:
            rows[name] = np.stack(
                [np.mean([self.by_sample.averaged(name, e[name]) for e in given], 0) for given in answers]
            )
        return rows

    def _scored(self, head: Net, answers: Sequence[Outputs]) -> Outputs:
        """Returns what the scoring layers say of the average of `answers`, the outputs of members and views."""
        for blob in head.inputs:
            values = [each[self._cut.copy_of(blob.name)] for each in answers]
            if blob.name in self._cut.scores and len(values) > 1:
                sign = np.float32(-1 if blob.name in self._cut.negated else 1)
                head.feed(blob, sign * log_mean([sign * value for value in values], self._cut.scores[blob.name]))
            else:
                head.feed(blob, values[0])
        return {name: self.by_sample.averaged(name, value) for name, value in head.forward().items()}


def _require_one_answer(nets: Cut, graph: Graph, path: str) -> None:
    """Raises ConfigError if there are scores of each pixel: a view shows a pixel in another place, and they are not
    moved back."""
    shapes = {top.name: top.shape for layer in graph.layers for top in layer.tops}
    for name, axis in nets.scores.items():
        if math.prod(shapes[name][axis:][1:]) > 1:
            raise ConfigError(
                f"--flip and --crops average one answer for each picture; '{name}' has one for each pixel", path
            )


def average(members: int, values: Outputs) -> Outputs:
    """Returns the outputs of the members' average, from what Ensemble.run() returns."""
    return {name: rows[members] for name, rows in values.items() if len(rows) > members}


def by_member(names: Sequence[str], values: Outputs) -> dict[str, object]:
    """Returns for JSON {"members": [{"weights": name, output: [values]}], "average": {output: [values]}}."""
    members = [
        {"weights": name, **{output: rows[row].tolist() for output, rows in values.items()}}
        for row, name in enumerate(names)
    ]
    averages = average(len(names), values)
    return {"members": members, "average": {output: value.tolist() for output, value in averages.items()}}


def to_table(names: Sequence[str], values: Outputs) -> str:
    """Returns a table with a line for each member and one for the average; outputs of several values are left out."""
    columns = {name: rows[:, 0] for name, rows in values.items() if rows.shape[1] == 1}
    lines = [
        (name, *(f"{column[row]:g}" if row < len(column) else "" for column in columns.values()))
        for row, name in enumerate([*names, f"average of {len(names)}"])
    ]
    return table(("weights", *columns), lines[:-1], total=lines[-1])


def log_mean(scores: Sequence[np.ndarray], axis: int) -> np.ndarray:
    """Returns the logarithm, float32, of the average of probabilities. scores: of each; softmax along `axis` makes them
    probabilities."""
    logs = [np.asarray(each, np.float64) for each in scores]
    logs = [each - _log_sum(each, axis) for each in logs]
    return (_log_sum(np.stack(logs), 0)[0] - np.log(len(logs))).astype(np.float32)


def _log_sum(values: np.ndarray, axis: int) -> np.ndarray:
    """Returns log(sum(exp(values))) along an axis, which is kept with size 1."""
    most = values.max(axis, keepdims=True)
    return most + np.log(np.exp(values - most).sum(axis, keepdims=True))


def _load_member(net: Net, files: Sequence[str], alone: bool) -> None:
    """Gives a net its weights. Raises WeightsError if a member of several lacks layers of the net."""
    if alone:
        load(net, files)
        return
    (path,) = files
    require_all(net.load_weights(read_caffemodel(path), path), path, "every member of an ensemble has all")
