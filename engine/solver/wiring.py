"""Adversarial training: puts two nets together as a solver's text says, and refuses what would teach nothing.

The joint net is the generator with the discriminator behind it, whose parameters do not learn there: backward carries
the gradient of the scores' loss through both. The discriminator alone is fed real samples and made samples in turn.
Both nets end with an AdversarialLoss.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engine import proto
from engine.config import NetConfig, SolverConfig, nets_of_solver
from engine.config.phases import kept_layers
from engine.config.suggestions import suggestion
from engine.data import batch_size_of
from engine.errors import ConfigError, shape_text
from engine.graph.build import ShapesOf, build
from engine.graph.graph import Graph
from engine.layers.base import Blob, Layer
from engine.solver.global_batch import data_layers

LOSS, REAL, MEETING = "adversarial_loss", "is_real", "adversarial_meeting"  # names of added layers and their blobs


@dataclass(frozen=True)
class Wiring:
    """The nets of an adversarial training.

    generator: the solver's own net, with as much noise as data in a batch. discriminator: it alone, with Input layers.
    joint: the generator with the discriminator behind it. frozen: names of the discriminator's layers, whose parameters
    do not learn in the joint net. meets: which blobs of the generator are fed to which input."""

    generator: NetConfig
    discriminator: NetConfig
    joint: NetConfig
    frozen: frozenset[str]
    meets: tuple[proto.MeetParameter, ...]


def wire(solver: SolverConfig) -> Wiring:
    """Puts the nets together. Raises ConfigError if names do not fit."""
    param, nets = solver.message.adversarial, nets_of_solver(solver)
    generator, discriminator = nets.train, nets.discriminator
    if generator is None or discriminator is None:
        raise ConfigError("adversarial needs two nets: net and adversarial.discriminator", solver.path)
    for net in (generator, discriminator):
        _refuse_parts(net)
    layers = data_layers(solver)
    batch = batch_size_of(layers[0]) if layers else 0
    generator, discriminator = _copy(generator), _copy(discriminator)
    _match_batches(generator, batch)
    _match_batches(discriminator, batch)
    _check_names(solver, generator, discriminator)
    joint = _join(param, generator, discriminator)
    behind = frozenset(layer.name for layer in discriminator.message.layer)
    discriminator.append(proto.LayerParameter(name=REAL, type="Input", top=[REAL]))
    discriminator.append(
        proto.LayerParameter(name=LOSS, type="AdversarialLoss", bottom=[param.score, REAL], top=[LOSS])
    )
    discriminator.message.layer[-2].input_param.shape.add().dim.append(1)
    for config in (joint, discriminator):
        config.message.layer[-1].adversarial_loss_param.loss = param.loss
    joint.message.layer[-1].loss_weight.append(param.loss_weight)
    return Wiring(generator, discriminator, joint, behind, tuple(param.meet))


def _refuse_parts(config: NetConfig) -> None:
    """Raises ConfigError for model parallelism: the two nets share weights and a snapshot, which hold whole layers."""
    found = [config.where(i) for i, layer in enumerate(config.message.layer) if layer.HasField("multinode")]
    if config.message.HasField("multinode"):
        found.insert(0, config.where(path="multinode"))
    if found:
        raise ConfigError("multinode: model parallelism does not go with adversarial; take it out", found[0])


def _copy(config: NetConfig) -> NetConfig:
    message = type(config.message)()
    message.CopyFrom(config.message)
    return config.with_message(message)


def _match_batches(config: NetConfig, batch: int) -> None:
    """Gives noise and inputs as many samples as the data have, so that the number stands in one place."""
    for layer in config.message.layer if batch else ():
        noise = layer.type == "DummyData" and layer.dummy_data_param.per_sample
        for shape in layer.dummy_data_param.shape if noise else layer.input_param.shape:
            if shape.dim:
                shape.dim[0] = batch


def _check_names(solver: SolverConfig, generator: NetConfig, discriminator: NetConfig) -> None:
    """Raises ConfigError for names that are unknown, or that both nets have."""
    inputs: dict[str, int] = {}
    found: dict[str, int] = {}
    names = {generator.message.layer[i].name: generator.where(i) for i in kept_layers(generator)}
    blobs = {top: generator.where(i) for i in kept_layers(generator) for top in generator.message.layer[i].top}
    for i in kept_layers(discriminator):
        layer = discriminator.message.layer[i]
        (inputs if layer.type == "Input" else found).update(dict.fromkeys(layer.top, i))
        if layer.name in names and layer.type != "Input":
            raise ConfigError(
                f"layer '{layer.name}' is in the generator, too ({names[layer.name]}), and one snapshot holds both; "
                "give it another name",
                discriminator.where(i),
            )
    _check_meets(solver, inputs, blobs, generator, discriminator)
    _check_score(solver, found, discriminator)
    both = sorted(set(found) & set(blobs) - set(inputs))
    if both:
        raise ConfigError(
            f"blob '{both[0]}' is in the generator, too ({blobs[both[0]]}); give it another name",
            discriminator.where(found[both[0]]),
        )


def _check_meets(
    solver: SolverConfig,
    inputs: dict[str, int],
    blobs: dict[str, str],
    generator: NetConfig,
    discriminator: NetConfig,
) -> None:
    """Raises ConfigError if a meet names what is not there, or if an input of the discriminator is in no meet.

    inputs: of the discriminator, with the indices of their layers. blobs: of the generator, with their places."""
    param, place = solver.message.adversarial, solver.place
    for meet in param.meet:
        for field, known in (("input", inputs), ("real", blobs), ("made", blobs)):
            name = getattr(meet, field)
            if name not in known:
                net, what = (discriminator, "Input layer") if field == "input" else (generator, "layer")
                raise ConfigError(
                    f"adversarial.meet: no {what} of {net.path} makes {field} '{name}'{suggestion(name, known)}",
                    place(f"adversarial.meet.{field}"),
                )
    unmet = sorted(set(inputs) - {meet.input for meet in param.meet})
    if unmet:
        raise ConfigError(
            f"input '{unmet[0]}' of the discriminator is in no meet of the solver ({place('adversarial')})",
            discriminator.where(inputs[unmet[0]]),
        )


def _check_score(solver: SolverConfig, found: dict[str, int], discriminator: NetConfig) -> None:
    """Raises ConfigError if no layer of the discriminator makes the score, or if a Sigmoid does that the loss takes by
    itself. found: the discriminator's blobs but its inputs, with the indices of their layers."""
    param, place = solver.message.adversarial, solver.place
    if param.score not in found:
        known = suggestion(param.score, found)
        raise ConfigError(
            f"adversarial.score: no layer of {discriminator.path} makes '{param.score}'{known}",
            place("adversarial.score"),
        )
    last = discriminator.message.layer[found[param.score]]
    if last.type == "Sigmoid" and param.loss == proto.AdversarialLossParameter.NON_SATURATING:
        raise ConfigError(
            f"adversarial.score: '{param.score}' is the top of a Sigmoid, and loss NON_SATURATING takes the sigmoid "
            f"itself; name the Sigmoid's bottom, '{last.bottom[0]}'",
            place("adversarial.score"),
        )


def _join(param: proto.AdversarialParameter, generator: NetConfig, discriminator: NetConfig) -> NetConfig:
    """Returns the joint net: the generator's layers, a Silence that reads all blobs that are fed to the discriminator
    (MEETING), the discriminator's layers on what the generator made, and the loss."""
    joint = _copy(generator)
    _take_statistics(joint.message.layer, generator.message)
    for field in ("bn_sync", "bn_stats_batch_size"):
        joint.message.ClearField(field)
    joint.message.name = " against ".join(net.message.name or net.path for net in (generator, discriminator))
    fed = list(dict.fromkeys(name for meet in param.meet for name in (meet.real, meet.made)))
    joint.append(proto.LayerParameter(name=MEETING, type="Silence", bottom=fed))
    made = {meet.input: meet.made for meet in param.meet}
    for i in kept_layers(discriminator):
        layer = proto.LayerParameter()
        layer.CopyFrom(discriminator.message.layer[i])
        if layer.type == "Input":
            continue
        for names in (layer.bottom, layer.top):
            names[:] = [made.get(name, name) for name in names]
        _take_statistics([layer], discriminator.message)
        joint.append(layer, discriminator, i)
    score = made.get(param.score, param.score)
    joint.append(proto.LayerParameter(name=LOSS, type="AdversarialLoss", bottom=[score], top=[LOSS]))
    return joint


def _take_statistics(layers: Iterable[proto.LayerParameter], net: proto.NetParameter) -> None:
    """Moves a net's settings for all BatchNorm layers into each of them, as the joint net has those of two files."""
    for layer in layers:
        if layer.type == "BatchNorm":
            param = layer.batch_norm_param
            param.sync = param.sync or net.bn_sync
            param.stats_batch_size = param.stats_batch_size or net.bn_stats_batch_size


def check_wiring(solver: SolverConfig, wiring: Wiring, shapes_of: ShapesOf) -> None:
    """Raises ConfigError if blobs do not fit together, or if one of the nets would learn nothing."""
    generator, discriminator = (_build(config, shapes_of) for config in (wiring.generator, wiring.discriminator))
    blobs, inputs = generator.blobs(), discriminator.blobs()
    for meet in wiring.meets:
        for field in ("real", "made"):
            name = getattr(meet, field)
            got, wanted = blobs[name].shape, inputs[meet.input].shape
            if got != wanted:
                raise ConfigError(
                    f"adversarial.meet: {field} '{name}' is {shape_text(got)}, but input '{meet.input}' of the "
                    f"discriminator is {shape_text(wanted)}",
                    solver.place(f"adversarial.meet.{field}"),
                )
    joint = _build(wiring.joint, shapes_of)
    wanted, layers = _reached(joint)
    made = next(layer for layer in joint.layers if layer.name == MEETING).bottoms
    made = [blob for blob in made if blob.name in {meet.made for meet in wiring.meets if meet.made != meet.real}]
    names = " and ".join(f"'{blob.name}'" for blob in made)
    score = solver.message.adversarial.score
    if not any(blob in wanted for blob in made):
        raise ConfigError(
            f"the generator would learn nothing: no gradient of the score '{score}' reaches {names}, which the "
            "discriminator does not read on the way to it, or behind propagate_down: false",
            solver.place("adversarial.score"),
        )
    if not any(layer.learns for layer in layers if layer.name not in wiring.frozen):
        raise ConfigError(
            f"the generator would learn nothing: {names} depends on no parameter that learns (lr_mult 0, "
            "propagate_down: false, or data)",
            solver.place("adversarial.meet.made"),
        )
    if not any(layer.learns for layer in _reached(discriminator)[1]):
        raise ConfigError(
            f"the discriminator would learn nothing: its score '{score}' depends on no parameter that learns",
            solver.place("adversarial.score"),
        )


def _build(config: NetConfig, shapes_of: ShapesOf) -> Graph:
    return build(config, config.message.state.phase, shapes_of=shapes_of)


def _reached(graph: Graph) -> tuple[set[Blob], list[Layer]]:
    """Returns the blobs that a gradient of the adversarial loss reaches, and the layers through which it flows."""
    wanted: set[Blob] = set()
    layers: list[Layer] = []
    for layer in reversed(graph.layers):
        if layer.name != LOSS and not any(top in wanted for top in layer.tops):
            continue
        layers.append(layer)
        wanted.update(blob for i, blob in enumerate(layer.bottoms) if layer.differentiable and layer.propagates(i))
    return wanted, layers
