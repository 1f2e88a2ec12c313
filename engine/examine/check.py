"""`engine check`: reads and builds nets and solvers without their data, and finds all errors in one go."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from engine import proto
from engine.config import NetConfig, SolverConfig, add_state, nets_of_solver
from engine.config.config import read
from engine.config.idle_fields import params_of_others
from engine.config.label_map import read_label_map
from engine.config.phases import PHASE_NAMES, kept, unknown_stages
from engine.data import batch_size_of
from engine.data.source_shapes import SUPPOSITIONS, SourceShapes, Supposition, suppositions
from engine.errors import CODE, FILE, ConfigError, EngineError
from engine.examine.check_graph import absent_fillers, distributions, unread
from engine.graph.build import build
from engine.graph.costs import LayerCost, Memory, layer_costs, memory
from engine.graph.graph import Graph
from engine.graph.model_parallel import model_parts
from engine.graph.passes.gradients import mark_gradients
from engine.graph.passes.split import insert_splits
from engine.host.memory import SMALLER_BATCH, free_memory, size_text, with_margin
from engine.layers.python import ModuleRefused
from engine.layers.registry import layer_types
from engine.solver.adversarial_param import describe, of_discriminator
from engine.solver.calendar import Calendar
from engine.solver.elastic_param import require_ranks
from engine.solver.global_batch import data_layers, other_batch, product_text, shared_states, unshared_data
from engine.solver.goals import check_goals
from engine.solver.outline import Outline
from engine.solver.resolve import in_epochs, resolve
from engine.solver.schedules import LearningRate
from engine.solver.update import remembered
from engine.solver.validate import check_schedules, check_snapshots, check_tests, notes, require_loss, validate
from engine.solver.wiring import check_wiring, wire

_SHAPE = re.compile(r"\((\d+, \d+)(?:, \d+)+\)")  # and its first two numbers
FITS_NONE = "fits none of the sizes that its data may have"
USUAL_CLASSES = 10  # where only data that are not here tell their number


@dataclass
class NetReport:
    """One net in the phases in which it looks like this."""

    name: str
    file: str
    phases: list[str]
    layers: list[LayerCost]
    memory: Memory
    batch: int  # of the first top, samples
    has_loss: bool
    recurrent: list[str]  # layers that go on from batch to batch
    supposition: Supposition = SUPPOSITIONS[0]  # of data that are not here

    @property
    def parameters(self) -> int:
        return sum(layer.parameters for layer in self.layers)

    @property
    def flops(self) -> int:
        """Of a forward pass over the batch."""
        return sum(layer.flops for layer in self.layers)


@dataclass
class FileReport:
    """What was found in one file. schedule: of a solver, (iteration, learning rate); outline: its run on `ranks`."""

    file: str
    kind: str = ""
    nets: list[NetReport] = field(default_factory=list)
    schedule: list[tuple[int, float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)  # Python layers; what depends on them is not checked
    absent_code: list[str] = field(default_factory=list)  # of Python layers; the same
    absent_files: list[str] = field(default_factory=list)
    ranks: int = 1
    batch: str = ""  # global, and what it is the product of
    optimizer_bytes: int = 0  # on each rank
    sharded: bool = False  # each rank has a share of them
    discriminator: NetReport | None = None  # of adversarial training; nets[0] is the generator with it behind
    outline: Outline | None = None

    def fail(self, error: EngineError) -> None:
        for each in error.errors:
            kinds = {FILE: self.absent_files, CODE: self.absent_code}
            lines = self.refused if isinstance(each, ModuleRefused) else kinds.get(each.absent, self.errors)
            if str(each) not in lines:
                lines.append(str(each))

    @property
    def lacks(self) -> list[str]:
        """What could not be checked, though nothing is known to be wrong with it."""
        return [*self.absent_code, *self.refused, *self.absent_files]

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def absent(self, text: str) -> None:
        """A file that is not here."""
        if text not in self.absent_files:
            self.absent_files.append(text)


def files_below(paths: Iterable[str]) -> list[str]:
    """Folders replaced by the .prototxt files below them. Raises ConfigError for a folder without any."""
    found: list[str] = []
    for path in paths:
        if not os.path.isdir(path):
            found.append(path)
            continue
        below = sorted(map(str, Path(path).rglob("*.prototxt")))
        if not below:
            raise ConfigError("the folder has no .prototxt file in it", path)
        found += below
    return found


def check_file(
    path: str, overrides: Iterable[str] = (), level: int | None = None, stages: Iterable[str] = (), ranks: int = 1
) -> FileReport:
    """Reads a net or a solver (its content says which) and builds its graphs. ranks: that a solver is to run on. Errors
    are in the report."""
    report = FileReport(path, ranks=ranks)
    try:
        if read_label_map(path) is not None:
            report.kind = "label map"
            return report
        config = read(path, overrides)
    except EngineError as error:  # an error also where it is not there
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
            _check_net(net, report)
    except EngineError as error:
        report.fail(error)
    return report


def _check_solver(config: SolverConfig, report: FileReport) -> None:
    # Some programs that train say it themselves.
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
        report.absent(str(error))  # on this machine, which need not be the one that trains
    for file in config.message.weights:
        if not os.path.exists(file):
            report.absent(f"{config.place('weights')}: weights {file} are not here")
    nets = nets_of_solver(config)
    if nets.train is None:
        raise ConfigError("the solver names no net to train; set net or train_net", config.path)
    try:
        model_parts(nets.train, report.ranks)
        if report.ranks > 1:  # else it is not known how many there will be
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
        state = net.message.state
        shapes_of = _add_graph(net, state.phase, state.level, list(state.stage), report, sets)
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
    """Without force_backward: a test takes no gradients."""
    message = proto.NetParameter()
    message.CopyFrom(net.message)
    message.force_backward = False
    return net.with_message(message)


def _check_adversarial(config: SolverConfig, report: FileReport, sets: float) -> None:
    """The generator with the discriminator behind it, the discriminator alone, then the test nets."""
    nets, adversarial = nets_of_solver(config), config.message.adversarial
    wiring = wire(config)
    shapes_of = SourceShapes(wiring.generator.message, proto.TRAIN, report.absent, ranks=report.ranks)
    check_wiring(config, wiring, shapes_of)
    for net, frozen in ((wiring.joint, wiring.frozen), (wiring.discriminator, frozenset())):
        state = net.message.state
        shapes_of = _add_graph(net, state.phase, state.level, list(state.stage), report, sets, frozen)
        if net is wiring.joint and report.nets:
            report.optimizer_bytes = int(sets * report.nets[0].memory.gradients)
            _add_outline(config, shapes_of, report)
    if len(report.nets) == 2:
        report.discriminator = report.nets[1]
        sets = remembered(of_discriminator(config.message), report.ranks)
        report.optimizer_bytes += int(sets * report.nets[1].memory.gradients)
    for test in map(_for_tests, nets.tests):
        state = test.message.state
        _add_graph(test, state.phase, state.level, list(state.stage), report)
    report.note(f"{config.place('adversarial')}: {describe(config.message)}")
    for meet in adversarial.meet:
        report.note(
            f"{config.place('adversarial.meet')}: the discriminator's input '{meet.input}' is '{meet.real}' where it "
            f"is real, '{meet.made}' where it is made"
        )


def _add_outline(config: SolverConfig, source: SourceShapes, report: FileReport) -> None:
    """What the solver's numbers come to on so many ranks."""
    param, layers = config.message, data_layers(config)
    recurrent = [name for net in report.nets for name in net.recurrent]
    for told in (*shared_states(param, recurrent), *unshared_data(config, report.ranks)):
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
    report.outline = Outline(param, *found, size)
    for told in other_batch(config, batch, report.ranks):
        report.note(told)
    for doubt in report.outline.doubts():
        report.note(f"{config.path}: {doubt}")


def _outline_without_batch(config: SolverConfig, report: FileReport) -> None:
    """Where nothing tells how many samples a batch has, but the code of a Python layer: the rates of iterations."""
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
    """The rates, and what resolve() returns; None, with the errors in the report, where it raises some."""
    try:
        resolved, calendar = resolve(config.message, batch, size, config.place, rows)
        check_schedules(resolved, config.place)
    except ConfigError as error:
        report.fail(error)
        return None
    report.schedule = _schedule(resolved)
    return resolved, calendar


def _schedule(param: proto.SolverParameter) -> list[tuple[int, float]]:
    """The learning rate at the start, at the end of the warm-up, at the quarters of the run."""
    rate = LearningRate(param)
    last = max(0, param.max_iter - 1)
    if rate.reads_loss:  # only its beginning is known
        return [(0, param.warmup_start_lr if param.warmup_iter > 0 else param.base_lr)]
    points = {0, *(last * quarter // 4 for quarter in range(1, 5))}
    if 0 < param.warmup_iter < last:
        points.add(param.warmup_iter)
    return [(point, rate(point)) for point in sorted(points)]


def _check_net(config: NetConfig, report: FileReport) -> None:
    """Both phases. One in which the net reads nothing, while it does in the other, is not meant."""
    if not config.message.layer:
        raise ConfigError("the net has no layers", config.path)
    level, stages = config.message.state.level, list(config.message.state.stage)
    _give_data(config, report)
    _give_num_output(config, report)
    kept = {phase: _feeding_layers(config, phase, level, stages) for phase in PHASE_NAMES}
    staged = [] if stages or any(kept.values()) else _feeding_stages(config, level)
    if staged:
        report.note(
            f"{config.path}: nothing feeds the net without a stage; checked with each that does: "
            f"{', '.join(staged)} (--stage)"
        )
        for phase, stage in itertools.product(PHASE_NAMES, staged):
            _add_graph(config, phase, level, [stage], report)
        return
    for phase, name in PHASE_NAMES.items():
        if not kept[phase] and any(kept.values()):
            report.note(f"{config.path}: nothing feeds the net in phase {name}, which is left out")
        else:
            _add_graph(config, phase, level, stages, report)
    deploy = all(layer.type == "Input" for layers in kept.values() for layer in layers)
    if deploy and report.errors and any("TEST" in net.phases for net in report.nets):
        report.note(f"{config.path}: the net is for TEST only, in TRAIN it does not build: {report.errors[0]}")
        report.errors.clear()


def _feeding_layers(config: NetConfig, phase: int, level: int, stages: list[str]) -> list[proto.LayerParameter]:
    layers = enumerate(config.message.layer)
    return [
        layer for i, layer in layers if not layer.bottom and kept(layer, phase, level, set(stages), config.where(i))
    ]


def _feeding_stages(config: NetConfig, level: int) -> list[str]:
    """The stages each of which alone lets a layer feed the net, in their order in the text."""
    named = dict.fromkeys(stage for layer in config.message.layer for rule in layer.include for stage in rule.stage)
    return [stage for stage in named if any(_feeding_layers(config, phase, level, [stage]) for phase in PHASE_NAMES)]


def _give_data(config: NetConfig, report: FileReport) -> None:
    """Some nets begin with layers that read 'data', and perhaps 'label', which no layer makes: whoever runs them, as
    DIGITS, puts the layer in front that does, or writes into those that are there what they read."""
    layers = config.message.layer
    for index, layer in enumerate(layers):
        given = layer.data_param.source or layer.data_param.HasField("batch_size") or params_of_others(layer)
        if layer.type == "Data" and not given:
            layer.data_param.batch_size = 1
            report.absent(
                f"{config.where(index)}: layer '{layer.name}' names no source and no batch_size, as where a program "
                "writes both there"
            )
    if not layers or not all(layer.bottom for layer in layers):
        return
    made: set[str] = set()
    lacking: dict[str, None] = {}
    for layer in layers:
        lacking |= dict.fromkeys(name for name in layer.bottom if name not in made)
        made.update(layer.top)
    if "data" not in lacking or not set(lacking) <= {"data", "label"}:
        return
    names = [name for name in ("data", "label") if name in lacking]
    config.put_in_front(proto.LayerParameter(name="data", type="Data", top=names, data_param={"batch_size": 1}))
    report.absent(
        f"{config.path}: nothing feeds the net: no layer makes {' and '.join(map(repr, names))}, as where a program "
        "puts the data layer there; put one there, or an Input layer"
    )


def _give_num_output(config: NetConfig, report: FileReport) -> None:
    """DIGITS's nets name no data, and say nothing of the number of its classes: DIGITS fills in both."""
    readers = [layer for layer in config.message.layer if layer.type == "Data"]
    if not readers or any(layer.data_param.source for layer in readers):
        return
    for index, layer in enumerate(config.message.layer):
        if layer.type == "InnerProduct" and not layer.inner_product_param.HasField("num_output"):
            layer.inner_product_param.num_output = USUAL_CLASSES
            report.absent(
                f"{config.where(index)}: layer '{layer.name}': num_output is left to the data, which is not here; "
                f"assuming {USUAL_CLASSES}"
            )


def _add_graph(
    config: NetConfig,
    phase: int,
    level: int,
    stages: list[str],
    report: FileReport,
    sets: float = 0,
    frozen: frozenset[str] = frozenset(),
) -> SourceShapes:
    """sets: of numbers that the optimizer remembers, one for each that is learned; frozen: layers that do not.
    Returns what it has found of the sources."""
    for text in config.notes:
        report.note(text)
    for text in unknown_stages(config.message, stages):
        report.note(f"{config.path}: {text}")
    for index, layer in enumerate(config.message.layer):
        if layer.type in layer_types() and (idle := params_of_others(layer)):
            report.note(
                f"{config.where(index, idle[0])}: layer '{layer.name}': {', '.join(idle)} has no effect on {layer.type}"
            )
    net, shapes_of = _built(config, phase, level, stages, report, frozen)
    if net is None:
        return shapes_of
    optimizer = int(sets * net.memory.gradients)
    used, free = net.memory, free_memory()
    needed = with_margin(used.parameters + used.gradients + optimizer + used.planned + used.ring)
    if needed > free:
        size = f"needs {size_text(needed)}, {size_text(free)} are free on this host"
        report.note(f"{config.path}: in phase {PHASE_NAMES[phase]} it {size}: {SMALLER_BATCH}")
    for other in report.nets:
        if (other.file, other.layers, other.memory) == (net.file, net.layers, net.memory):
            other.phases += net.phases
            return shapes_of
    report.nets.append(net)
    return shapes_of


def _built(
    config: NetConfig,
    phase: int,
    level: int,
    stages: list[str],
    report: FileReport,
    frozen: frozenset[str] = frozenset(),
) -> tuple[NetReport | None, SourceShapes]:
    """Where nothing tells the size of data that are not here, one with which the net builds is found: an error that it
    has with some sizes only is a lack of data."""
    failed: list[tuple[dict[str, EngineError], list[str], SourceShapes]] = []  # errors, what is absent
    for supposition in suppositions(config.message):
        lines: list[str] = []
        shapes_of = SourceShapes(config.message, phase, lines.append, suppose=supposition, ranks=report.ranks)
        try:
            graph = build(config, phase, level=level, stages=stages, shapes_of=shapes_of)
            graph.freeze(frozen)
            lines += absent_fillers(graph)
            doubts = [*unread(graph), *distributions(graph)]
            net = _net_report(config, graph)
            net.supposition = supposition
        except ConfigError as error:
            failed.append(({str(each): each for each in error.errors}, lines, shapes_of))
            always = set.intersection(*(set(errors) for errors, *_ in failed))
            if not shapes_of.supposed or (always and supposition.picture):  # with the second size, too
                break
            continue
        for line in lines:
            report.absent(line)
        for text in doubts:
            report.note(text)
        return net, shapes_of
    errors, lines, shapes_of = failed[0]
    for line in lines:
        report.absent(line)
    always = set.intersection(*(set(map(_without_sides, errors)) for errors, *_ in failed))
    sure = [error for text, error in errors.items() if _without_sides(text) in always]
    for error in sure:
        report.fail(error)
    if not sure:
        report.absent(
            f"{config.path}: in phase {PHASE_NAMES[phase]} the net {FITS_NONE}; with the first: {next(iter(errors))}"
        )
    return None, shapes_of


def _without_sides(text: str) -> str:
    """An error, without heights and widths where channels differ, too: it does not come of a picture's size."""
    differ = len({shape[1] for shape in _SHAPE.finditer(text)}) > 1
    return _SHAPE.sub(r"(\1)", text) if differ else text


def _net_report(config: NetConfig, graph: Graph) -> NetReport:
    layers = layer_costs(graph)
    shapes = [shape for layer in layers for _, shape in layer.tops if shape]
    insert_splits(graph)
    mark_gradients(graph, graph.trains)
    batch = shapes[0][0] if shapes else 0
    has_loss = any(weight for layer in graph.layers for weight in layer.loss_weights)
    recurrent, phases = [layer.name for layer in graph.recurrent], [PHASE_NAMES[graph.phase]]
    return NetReport(graph.name, config.path, phases, layers, memory(graph), batch, has_loss, recurrent)
