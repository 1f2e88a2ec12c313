"""Upgrades older formats to the current one: V0 and V1 layers, net inputs, renamed fields, solver types.

Both upgrades may run again on their own result: nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from engine import proto
from engine.config.forks import upgrade_forks
from engine.config.idle_fields import without_idle_augmentation, without_idle_steps, without_idle_transform
from engine.config.old_layers import upgrade_layers
from engine.config.prototext import Node, where_of
from engine.config.renamed import RENAMED_OF_LAYERS, RENAMED_OF_SOLVERS, rename
from engine.errors import ConfigError
from engine.weights.intel import STATISTICS

_SOLVER_TYPES = {
    "SGD": "SGD",
    "NESTEROV": "Nesterov",
    "ADAGRAD": "AdaGrad",
    "RMSPROP": "RMSProp",
    "ADADELTA": "AdaDelta",
    "ADAM": "Adam",
}


def upgrade_solver(message: proto.SolverParameter, nodes: Iterable[Node] = ()) -> list[str]:
    """Upgrades a solver in place: solver_type (an enum) becomes type (a string), NVIDIA's rampup our warm-up.

    nodes: the fields of the text, for their places. Returns a note on each upgrade. Raises ConfigError for a field that
    is given under both names."""
    notes, places = [], {node.name: node for node in nodes}
    if message.HasField("rampup_interval") or message.HasField("rampup_lr"):
        for each in RENAMED_OF_SOLVERS:
            rename(message, each, "", places.get(each.old))
        notes.append("upgraded from rampup_interval and rampup_lr to a warm-up")
    if not message.HasField("solver_type"):
        return notes
    if message.HasField("type"):
        raise ConfigError(
            "both 'type' and the older 'solver_type' are given; keep 'type'", where_of(places.get("solver_type"))
        )
    message.type = _SOLVER_TYPES[message.SolverType.Name(message.solver_type)]
    message.ClearField("solver_type")
    return [*notes, "upgraded from solver_type to type"]


def upgrade_net(
    message: proto.NetParameter, nodes: Mapping[str, Sequence[Node | None]] | None = None
) -> tuple[list[Node | None], list[str]]:
    """Brings a NetParameter to the current format, in place.

    nodes: the nodes of the file's `layer`, `layers` and `input` fields, by field. Returns the place of each
    message.layer (None if unknown), and notes: on each older format that it met, and on fields without effect. Raises
    ConfigError for what has no counterpart today.
    """
    nodes = nodes or {}
    notes: list[str] = []
    origins = _places(nodes.get("layer"), len(message.layer))
    older = bool(message.layers)
    if older:
        old_origins = _places(nodes.get("layers"), len(message.layers))
        if message.layer:
            raise ConfigError("both 'layer' and the older 'layers' are given", where_of(old_origins[0]))
        version = "V0" if any(layer.HasField("layer") for layer in message.layers) else "V1"
        notes.append(f"upgraded from the {version} format of layers")
        origins = upgrade_layers(message, old_origins)
    if message.input:
        notes.append("upgraded its inputs to an Input layer")
        origins = _upgrade_inputs(message, (nodes.get("input") or [None])[0]) + origins
    for layer, origin in zip(message.layer, origins, strict=True):
        notes += without_idle_transform(layer, older)
        _upgrade_fields(layer, origin)
        notes += without_idle_steps(layer) + without_idle_augmentation(layer)
    return origins, notes


def _places(nodes: Sequence[Node | None] | None, count: int) -> list[Node | None]:
    """Returns the places of `count` layers: all None if the text has another number of layers, as after
    --set net_param={ ... }."""
    return list(nodes) if nodes and len(nodes) == count else [None] * count


def _upgrade_inputs(message: proto.NetParameter, origin: Node | None) -> list[Node | None]:
    """Turns `input` and its shapes into an Input layer before all others. Returns the place of that layer in a list,
    which is empty if there is no such layer.

    Inputs without shapes are dropped if they have no place in a text, as in old weight files; in a text they become an
    Input layer, which asks for its shapes. Raises ConfigError if the shapes do not fit the inputs.
    """
    names, dims = list(message.input), list(message.input_dim)
    if not all(isinstance(name, str) for name in names):  # protobuf gives bytes for such a name in a binary file
        raise ConfigError("the name of an input is not UTF-8", where_of(origin))
    axes = 5 if names and len(dims) == 5 * len(names) else 4  # C3D's inputs are clips
    shapes = [list(shape.dim) for shape in message.input_shape]
    shapes = shapes or [dims[i : i + axes] for i in range(0, len(dims), axes)]
    if shapes and (len(shapes) != len(names) or len(dims) % axes):
        given = f"{len(message.input_shape)} input_shape" if message.input_shape else f"{len(dims)} input_dim"
        raise ConfigError(
            f"{len(names)} input with {given}; expected an input_shape, or 4 input_dim, for each (of clips, 5)",
            where_of(origin),
        )
    for field in ("input", "input_dim", "input_shape"):
        message.ClearField(field)
    if not shapes and origin is None:
        return []
    upgraded = type(message)()
    layer = upgraded.layer.add(name="input", type="Input", top=names)
    for shape in shapes:
        layer.input_param.shape.add(dim=shape)
    upgraded.layer.extend(message.layer)
    message.ClearField("layer")
    message.MergeFrom(upgraded)
    return [origin]


def _upgrade_fields(layer: proto.LayerParameter, origin: Node | None) -> None:
    """Upgrades fields that moved or changed their name within the current format of layers."""
    for param, renamed in RENAMED_OF_LAYERS.items():
        if layer.HasField(param):
            for each in renamed:
                rename(getattr(layer, param), each, f"layer '{layer.name}': ", origin)
    upgrade_forks(layer, origin)
    loss = layer.loss_param
    if loss.HasField("normalize"):
        if not loss.HasField("normalization"):
            loss.normalization = loss.VALID if loss.normalize else loss.BATCH_SIZE
        loss.ClearField("normalize")
    if layer.type == "BatchNorm":
        whole = len(layer.param) >= STATISTICS  # older nets give all three, with any lr_mult
        for param in layer.param[:STATISTICS]:  # the layer itself updates them, never the solver
            if not whole and param.lr_mult:
                raise ConfigError(
                    f"layer '{layer.name}' (BatchNorm): no solver updates its statistics: expected param with "
                    f"lr_mult: 0, or none, got {param.lr_mult:g}",
                    where_of(origin),
                )
            param.lr_mult = param.decay_mult = 0
