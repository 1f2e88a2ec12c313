"""Checks a net for `engine check`: builds its graphs without data, and supposes what only data would tell."""

from __future__ import annotations

import itertools
import re

from engine import proto
from engine.config import NetConfig
from engine.config.idle_fields import params_of_other_types
from engine.config.phases import PHASE_NAMES, kept, state_in, unknown_stages
from engine.data.source_shapes import SourceShapes, suppositions
from engine.errors import ConfigError, EngineError
from engine.examine.check_graph import absent_fillers, distributions, softmax_again, unread
from engine.examine.check_report import FileReport, NetReport
from engine.graph.build import build
from engine.graph.costs import layer_costs, memory
from engine.graph.graph import Graph
from engine.graph.passes.gradients import mark_gradients
from engine.graph.passes.split import insert_splits
from engine.host.memory import SMALLER_BATCH, free_memory, size_text, with_margin
from engine.layers.registry import layer_types

_SHAPE = re.compile(r"\((\d+, \d+)(?:, \d+)+\)")  # of a blob in a message; the group is its first two numbers
FITS_NONE = "fits none of the sizes that its data may have"
USUAL_CLASSES = 10  # supposed where only data that are not here tell the number of classes


def check_net(config: NetConfig, report: FileReport) -> None:
    """Checks a net in both phases, but not in one in which nothing feeds it while something does in the other. Raises
    ConfigError for a net without layers; else errors go to the report."""
    if not config.message.layer:
        raise ConfigError("the net has no layers", config.path)
    _give_data(config, report)
    _give_num_output(config, report)
    feeding = {phase: _feeding_layers(config, state_in(config, phase)) for phase in PHASE_NAMES}
    staged = [] if config.message.state.stage or any(feeding.values()) else _feeding_stages(config)
    if staged:
        report.note(
            f"{config.path}: nothing feeds the net without a stage; checked with each that does: "
            f"{', '.join(staged)} (--stage)"
        )
        for phase, stage in itertools.product(PHASE_NAMES, staged):
            add_graph(config, state_in(config, phase, [stage]), report)
        return
    for phase, name in PHASE_NAMES.items():
        if not feeding[phase] and any(feeding.values()):
            report.note(f"{config.path}: nothing feeds the net in phase {name}, which is left out")
        else:
            add_graph(config, state_in(config, phase), report)
    deploy = all(layer.type == "Input" for layers in feeding.values() for layer in layers)
    if deploy and report.errors and any("TEST" in net.phases for net in report.nets):
        report.note(f"{config.path}: the net is for TEST only, in TRAIN it does not build: {report.errors[0]}")
        report.errors.clear()


def _feeding_layers(config: NetConfig, state: proto.NetState) -> list[proto.LayerParameter]:
    """Returns the layers without bottoms of a net in a state."""
    layers = enumerate(config.message.layer)
    return [layer for i, layer in layers if not layer.bottom and kept(layer, state, config.where(i))]


def _feeding_stages(config: NetConfig) -> list[str]:
    """Returns the stages with each of which alone some layer feeds the net, in their order in the text."""
    named = dict.fromkeys(stage for layer in config.message.layer for rule in layer.include for stage in rule.stage)
    states = {stage: [state_in(config, phase, [stage]) for phase in PHASE_NAMES] for stage in named}
    return [stage for stage, of in states.items() if any(_feeding_layers(config, state) for state in of)]


def _give_data(config: NetConfig, report: FileReport) -> None:
    """Gives a net a data layer, or its data layers a batch size, where programs such as DIGITS do so before they run
    it. Such nets begin with layers that read 'data', and perhaps 'label', which no layer makes, or have Data layers
    that name no source."""
    layers = config.message.layer
    for index, layer in enumerate(layers):
        given = layer.data_param.source or layer.data_param.HasField("batch_size") or params_of_other_types(layer)
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
    """Gives InnerProduct layers without num_output USUAL_CLASSES in a net that names no data: DIGITS fills in the
    number of classes."""
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


def add_graph(
    config: NetConfig,
    state: proto.NetState,
    report: FileReport,
    sets: float = 0,
    frozen: frozenset[str] = frozenset(),
) -> SourceShapes:
    """Builds a net in a state, and adds it to the report, or its phase to an equal net that is there. Returns what it
    has found of the sources.

    Args:
        sets: how many numbers the optimizer remembers for each parameter.
        frozen: names of layers that do not learn.
    """
    for text in config.notes:
        report.note(text)
    for text in unknown_stages(config.message, state.stage):
        report.note(f"{config.path}: {text}")
    for index, layer in enumerate(config.message.layer):
        if layer.type in layer_types() and (idle := params_of_other_types(layer)):
            report.note(
                f"{config.where(index, idle[0])}: layer '{layer.name}': {', '.join(idle)} has no effect on {layer.type}"
            )
    net, shapes_of = _built(config, state, report, frozen)
    if net is None:
        return shapes_of
    optimizer = int(sets * net.memory.gradients)
    used, free = net.memory, free_memory()
    needed = with_margin(used.parameters + used.gradients + optimizer + used.planned + used.ring)
    if needed > free:
        size = f"needs {size_text(needed)}, {size_text(free)} are free on this host"
        report.note(f"{config.path}: in phase {PHASE_NAMES[state.phase]} it {size}: {SMALLER_BATCH}")
    for other in report.nets:
        if (other.file, other.layers, other.memory) == (net.file, net.layers, net.memory):
            other.phases += net.phases
            return shapes_of
    report.nets.append(net)
    return shapes_of


def _built(
    config: NetConfig,
    state: proto.NetState,
    report: FileReport,
    frozen: frozenset[str] = frozenset(),
) -> tuple[NetReport | None, SourceShapes]:
    """Builds a net in a state. Returns its report, None if it does not build, and what was found of the sources.

    Where nothing tells the size of data that are not here it tries several. An error that comes with some sizes only
    does not count as the net's: the report then says that data are absent."""
    failed: list[tuple[dict[str, EngineError], list[str], SourceShapes]] = []  # of each size: errors, what is absent
    for supposition in suppositions(config.message):
        lines: list[str] = []
        shapes_of = SourceShapes(config.message, state.phase, lines.append, suppose=supposition, ranks=report.ranks)
        try:
            graph = build(config, state.phase, level=state.level, stages=state.stage, shapes_of=shapes_of)
            graph.freeze(frozen)
            lines += absent_fillers(graph)
            doubts = [*unread(graph), *distributions(graph), *softmax_again(graph)]
            net = _net_report(config, graph)
            net.supposition = supposition
        except ConfigError as error:
            failed.append(({str(each): each for each in error.errors}, lines, shapes_of))
            always = set.intersection(*(set(errors) for errors, *_ in failed))
            if not shapes_of.supposed or (always and supposition.picture):  # the errors come with two sizes at least
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
        phase, first = PHASE_NAMES[state.phase], next(iter(errors))
        report.absent(f"{config.path}: in phase {phase} the net {FITS_NONE}; with the first: {first}")
    return None, shapes_of


def _without_sides(text: str) -> str:
    """Returns an error's text, without heights and widths if its shapes differ in channels, too: then it does not come
    from the size of pictures, and is the same error with every size."""
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
