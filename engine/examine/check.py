"""`engine check`: reads and builds nets and solvers without their data, and finds all errors in one go."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import cast

from engine import proto
from engine.config import NetConfig, SolverConfig, add_state, nets_of_solver
from engine.config.config import read
from engine.config.label_map import read_label_map
from engine.data import batch_size_of
from engine.data.source_shapes import SourceShapes
from engine.errors import ConfigError, EngineError
from engine.examine.check_net import add_graph, check_net
from engine.examine.check_report import FileReport
from engine.graph.model_parallel import model_parts
from engine.solver.adversarial_param import describe, of_discriminator
from engine.solver.calendar import Calendar
from engine.solver.elastic_param import require_ranks
from engine.solver.global_batch import (
    batch_warnings,
    data_layers,
    product_text,
    python_data_warnings,
    recurrent_warnings,
)
from engine.solver.goals import check_goals
from engine.solver.outline import Outline
from engine.solver.resolve import in_epochs, resolve
from engine.solver.schedules import LearningRate
from engine.solver.update import remembered
from engine.solver.validate import check_schedules, check_snapshots, check_tests, notes, require_loss, validate
from engine.solver.wiring import check_wiring, wire


def files_below(paths: Iterable[str]) -> list[str]:
    """Returns the files that paths stand for: a folder stands for the .prototxt files below it, a list with commas (as
    --solver takes for stages) for each of its files. Raises ConfigError for a folder without such files."""
    found: list[str] = []
    for path in chain.from_iterable(map(_split_list, paths)):
        if not os.path.isdir(path):
            found.append(path)
            continue
        below = sorted(map(str, Path(path).rglob("*.prototxt")))
        if not below:
            raise ConfigError("the folder has no .prototxt file in it", path)
        found += below
    return found


def _split_list(path: str) -> list[str]:
    """Splits a list of files at its commas. One file's path may have commas, too: it stays as it is."""
    files = [file.strip() for file in path.split(",")]
    return files if not os.path.exists(path) and all(map(os.path.exists, files)) else [path]


def check_file(
    path: str, overrides: Iterable[str] = (), level: int | None = None, stages: Iterable[str] = (), ranks: int = 1
) -> FileReport:
    """Reads a net or a solver (its content says which), builds its graphs, and returns a report, which has the errors.

    Args:
        overrides: FIELD=VALUE each, as for --set.
        level, stages: of the state in which nets are built.
        ranks: that a solver is to run on.
    """
    report = FileReport(path, ranks=ranks)
    try:
        if read_label_map(path) is not None:
            report.kind = "label map"
            return report
        config = read(path, overrides)
    except EngineError as error:  # also if there is no such file
        report.errors += [str(each) for each in error.errors]
        return report
    try:
        report.kind = config.kind
        if config.kind == "solver":
            solver = cast(SolverConfig, config)
            solver.ranks = ranks
            add_state(solver.message.train_state, level, stages)
            _check_solver(solver, report)
        else:
            net = cast(NetConfig, config)
            add_state(net.message.state, level, stages)
            check_net(net, report)
    except EngineError as error:
        report.fail(error)
    return report


def _check_solver(config: SolverConfig, report: FileReport) -> None:
    """Checks a solver and its nets. Raises ConfigError if it names no net to train, else errors go to the report."""
    # It is no error: some programs set max_iter when they train.
    if not (config.message.HasField("max_iter") or config.message.HasField("max_epoch")):
        report.note(f"{config.path}: max_iter is missing; a training needs it, here or with --set max_iter=N")
        config.message.max_iter = 1
    try:
        validate(config.message, config.place)
    except ConfigError as error:
        report.fail(error)
    for text in (*config.notes, *notes(config.message)):
        report.note(text)
    try:
        check_snapshots(config.message, config.path, config.place("snapshot_prefix"))
    except ConfigError as error:
        report.absent(str(error))  # the folder may be there on the machine that trains
    for file in config.message.weights:
        if not os.path.exists(file):
            report.absent(f"{config.place('weights')}: weights {file} are not here")
    nets = nets_of_solver(config)
    if nets.train is None:
        raise ConfigError("the solver names no net to train; set net or train_net", config.path)
    try:
        model_parts(nets.train, report.ranks)
        if report.ranks > 1:  # 1 is the default, and says nothing of the run
            require_ranks(config.message, report.ranks, config.place)
    except ConfigError as error:
        report.fail(error)
    wrong, sets = bool(report.errors), remembered(config.message, report.ranks)
    report.sharded = config.message.comm_param.shard_updates and report.ranks > 1
    if config.message.HasField("adversarial"):
        if not wrong:
            _check_adversarial(config, report, sets)
        return
    reads: list[bool] = []  # of each net in turn
    for net in (nets.train, *map(_for_tests, nets.tests)):
        shapes_of = add_graph(net, net.message.state, report, sets)
        reads.append(shapes_of.reads)
        if net is nets.train and report.nets:
            report.optimizer_bytes = int(sets * report.nets[0].memory.gradients)
        if net is nets.train and not wrong:
            _add_outline(config, shapes_of, report)
    try:
        check_tests(config.message, reads[1:], config.place)
        check_goals(config)
        if report.nets and "TRAIN" in report.nets[0].phases and not report.refused + report.absent_code:
            require_loss(report.nets[0].name, report.nets[0].has_loss, nets.train.path)
    except ConfigError as error:
        report.fail(error)


def _for_tests(net: NetConfig) -> NetConfig:
    """Returns a test net without force_backward: a test computes no gradients."""
    message = proto.NetParameter()
    message.CopyFrom(net.message)
    message.force_backward = False
    return net.with_message(message)


def _check_adversarial(config: SolverConfig, report: FileReport, sets: float) -> None:
    """Checks the generator with the discriminator behind it, the discriminator alone, and the test nets.

    Args:
        sets: numbers that the optimizer remembers for each parameter.
    """
    nets, adversarial = nets_of_solver(config), config.message.adversarial
    wiring = wire(config)
    shapes_of = SourceShapes(wiring.generator.message, proto.TRAIN, report.absent, ranks=report.ranks)
    check_wiring(config, wiring, shapes_of)
    for net, frozen in ((wiring.joint, wiring.frozen), (wiring.discriminator, frozenset())):
        shapes_of = add_graph(net, net.message.state, report, sets, frozen)
        if net is wiring.joint and report.nets:
            report.optimizer_bytes = int(sets * report.nets[0].memory.gradients)
            _add_outline(config, shapes_of, report)
    if len(report.nets) == 2:
        report.discriminator = report.nets[1]
        sets = remembered(of_discriminator(config.message), report.ranks)
        report.optimizer_bytes += int(sets * report.nets[1].memory.gradients)
    for test in map(_for_tests, nets.tests):
        add_graph(test, test.message.state, report)
    report.note(f"{config.place('adversarial')}: {describe(config.message)}")
    for meet in adversarial.meet:
        report.note(
            f"{config.place('adversarial.meet')}: the discriminator's input '{meet.input}' is '{meet.real}' where it "
            f"is real, '{meet.made}' where it is made"
        )


def _add_outline(config: SolverConfig, source: SourceShapes, report: FileReport) -> None:
    """Adds the global batch, the outline of the run and the learning rates to the report."""
    param, layers = config.message, data_layers(config)
    recurrent = [name for net in report.nets for name in net.recurrent]
    for told in (*recurrent_warnings(param, recurrent), *python_data_warnings(config, report.ranks)):
        report.note(f"{config.path}: {told}")
    each, iter_size = batch_size_of(layers[0]) if layers else 1, max(1, param.iter_size)
    if not (layers or report.nets):
        _outline_without_batch(config, report)
        return
    rows = 0 if layers else max(1, report.nets[0].batch)
    batch, size = report.ranks * each * iter_size, source.size * (report.ranks if source.own_items else 1)
    report.batch = f"{batch * (rows or 1)} = {product_text(report.ranks, rows or each, iter_size)}"
    counted = in_epochs(param)
    if counted and not (size or param.epoch_size):
        report.note(
            f"{config.where(path=counted[0])}: {counted[0]}: the size of the data set is not known here; "
            "--set epoch_size=N (samples) shows the run"
        )
        return
    found = _add_schedule(config, report, batch, size, rows)
    if not found:
        return
    report.outline = Outline(param, *found, size, bool(param.weights))
    for told in batch_warnings(config, batch, report.ranks):
        report.note(told)
    for doubt in report.outline.doubts():
        report.note(f"{config.path}: {doubt}")


def _outline_without_batch(config: SolverConfig, report: FileReport) -> None:
    """Adds the learning rates by iterations, where only the code of a Python layer knows how many samples a batch
    has."""
    counted = in_epochs(config.message)
    if counted:
        report.note(
            f"{config.where(path=counted[0])}: {counted[0]}: the samples of a batch are not known here, for the train "
            "net is not built; the log of a run tells its iterations"
        )
        return
    _add_schedule(config, report, batch=1, size=0)


def _add_schedule(
    config: SolverConfig, report: FileReport, batch: int, size: int, rows: int = 0
) -> tuple[proto.SolverParameter, Calendar] | None:
    """Adds the learning rates to the report. Returns what resolve() returns; None if it raises errors, which the report
    then has."""
    try:
        resolved, calendar = resolve(config.message, batch, size, config.place, rows)
        check_schedules(resolved, config.place)
    except ConfigError as error:
        report.fail(error)
        return None
    report.schedule = _schedule(resolved)
    return resolved, calendar


def _schedule(param: proto.SolverParameter) -> list[tuple[int, float]]:
    """Returns (iteration, learning rate) at the start, at the end of the warm-up, and at each quarter of the run."""
    rate = LearningRate(param)
    last = max(0, param.max_iter - 1)
    if rate.reads_loss:  # later rates depend on losses
        return [(0, param.warmup_start_lr if param.warmup_iter > 0 else param.base_lr)]
    points = {0, *(last * quarter // 4 for quarter in range(1, 5))}
    if 0 < param.warmup_iter < last:
        points.add(param.warmup_iter)
    return [(point, rate(point)) for point in sorted(points)]
