"""The global batch, the samples of an iteration over all ranks: keeps it on another number of ranks, and warns where it
is not what a solver is meant for."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from engine import proto
from engine.config import SolverConfig, net_of_solver
from engine.config.phases import kept_layers
from engine.data import batch_size_of, set_batch_size
from engine.errors import ConfigError
from engine.layers.registry import layer_types
from engine.report.log import log, warn

if TYPE_CHECKING:
    from engine.comm.world import World
    from engine.solver.resume import Snapshot


def hold_global_batch(config: SolverConfig, world: World, snapshot: Snapshot) -> None:
    """Changes iter_size and the train net's batch_size so that an iteration has as many samples as in the snapshot.

    Raises ConfigError, with the numbers, if this number of ranks cannot divide them.
    """
    layers = data_layers(config)
    batch = batch_size_of(layers[0]) if layers else 1
    steps = max(1, config.message.iter_size)
    before = snapshot.global_batch or (snapshot.ranks or world.size) * batch * steps
    slices = _slices(config)
    sequences = [layer.continuation_indicator_param.batch_size for layer in _indicators(config)]
    multiple = _multiple(layers, slices, sequences)
    size, new_steps = divide_batch(before, world.size, batch, steps, adjustable=bool(layers), multiple=multiple)
    if new_steps > 1 and config.message.HasField("adversarial"):  # which trains on one batch at a time
        each = {ranks: before // ranks for ranks in range(1, before + 1) if before % ranks == 0}
        fitting = [ranks for ranks, size in each.items() if size <= batch and size % multiple == 0]
        raise ConfigError(
            f"--resume auto: {_ranks(world.size)} of batch_size {batch} cannot hold the snapshot's global batch of "
            f"{before}, for adversarial goes without iter_size; ranks that can: "
            f"{', '.join(map(str, fitting[:8]))}; --snapshot goes on with another global batch"
        )
    if snapshot.ranks not in (None, world.size) and any("%#" in str(layer) for layer in layers):
        warn("Each rank reads a data source of its own (%#): on another number of ranks samples come in another order")
    if (size, new_steps) == (batch, steps):
        return
    scale_batch(config, size, batch)
    set_iter_size(config.message, new_steps)
    if not layers:  # only the built net knows how many rows a batch has
        log(f"iter_size {steps} -> {new_steps}: {before} batches in an iteration, as before")
        return
    log(
        f"Global batch {before} held: {product_text(world.size, size, new_steps)} (the files say {batch} x {steps}, "
        f"ranks of the snapshot: {snapshot.ranks})"
    )
    if size != batch and 0 in slices:
        warn(f"BatchNorm takes its statistics from {size} samples now, not {batch}")
    types = {name for name, each in layer_types().items() if each.sums_batch}
    sums = [f"'{layer.name}'" for layer in _train_layers(config) if layer.type in types]
    if size != batch and sums:
        warn(
            f"The gradient of {', '.join(sums)} is the sum over a batch, which has {size} samples now, not {batch}: "
            f"multiply its loss_weight by {batch}/{size} to keep the rate"
        )


def scale_batch(config: SolverConfig, size: int, batch: int) -> None:
    """Multiplies the batch_size of data layers, and of ContinuationIndicator layers, by size / batch, which must give
    whole numbers."""
    for layer in data_layers(config):
        set_batch_size(layer, batch_size_of(layer) * size // batch)
    for layer in _indicators(config):
        param = layer.continuation_indicator_param
        param.batch_size = param.batch_size * size // batch


def _indicators(config: SolverConfig) -> list[proto.LayerParameter]:
    return [layer for layer in _train_layers(config) if layer.type == "ContinuationIndicator"]


def _train_layers(config: SolverConfig) -> Iterator[proto.LayerParameter]:
    """Returns the layers of the train net that its phase and stages keep."""
    train = net_of_solver(config, proto.TRAIN)
    return (train.message.layer[index] for index in kept_layers(train))


def _slices(config: SolverConfig) -> set[int]:
    """Returns how many samples the BatchNorm layers of the train net take statistics from; 0: all of a batch."""
    params = (layer.batch_norm_param for layer in _train_layers(config) if layer.type == "BatchNorm")
    whole = net_of_solver(config, proto.TRAIN).message.bn_stats_batch_size
    return {param.stats_batch_size or whole for param in params if not param.use_global_stats}


def _multiple(layers: Sequence[proto.LayerParameter], slices: Collection[int], sequences: Collection[int]) -> int:
    """Returns the number of which the first data layer's batch_size must stay a multiple: mix_param takes pairs of
    samples, BatchNorm whole slices, and every other batch_size changes by the same factor and must stay whole."""
    if not layers:
        return 1
    batch = batch_size_of(layers[0])
    found = [math.gcd(size, batch) for size in slices if size]  # a slice may span the samples of several data layers
    for layer in layers:
        unit = batch * (2 if layer.transform_param.HasField("mix_param") else 1)
        found.append(unit // math.gcd(unit, batch_size_of(layer)))
    found += [batch // math.gcd(batch, count) for count in sequences]
    return math.lcm(*found)


def data_batch(config: SolverConfig) -> int:
    """Returns the samples of one rank in an iteration, by the batch_size and iter_size of the files."""
    layers = data_layers(config)
    return (batch_size_of(layers[0]) if layers else 1) * max(1, config.message.iter_size)


def divide_batch(
    total: int, ranks: int, batch: int, steps: int, adjustable: bool = True, multiple: int = 1
) -> tuple[int, int]:
    """Returns (batch_size, iter_size) for each of `ranks` ranks, whose product is total / ranks samples.

    batch, steps: the batch_size and iter_size of the files. adjustable: whether batch_size may change; then it is the
    largest multiple of `multiple` that is not above `batch` and divides a rank's samples. Raises ConfigError if there
    is none."""
    if ranks * batch * steps == total:
        return batch, steps
    step = multiple if adjustable else batch
    if size := _batch_size(total, ranks, batch, step):
        return size, total // ranks // size
    fitting = [str(number) for number in range(1, 4 * ranks + 1) if _batch_size(total, number, batch, step)]
    can = ", ".join(fitting[-8:]) or f"none up to {4 * ranks}"
    advice = f"ranks that can: {can}; --snapshot goes on with another global batch"
    if total % ranks:
        raise ConfigError(f"--resume auto: {ranks} ranks cannot share the snapshot's global batch of {total}; {advice}")
    wanted = f"{(batch + 1) // 2} to {batch}" if adjustable else str(batch)
    if multiple > 1:
        wanted += (
            f" that {multiple} divides, by mix_param, stats_batch_size, another data layer or indicators of sequences"
        )
    raise ConfigError(
        f"--resume auto: the snapshot's global batch of {total} is {total // ranks} for each of {ranks} ranks, which "
        f"is no multiple of a batch_size of {wanted}; {advice}"
    )


def _batch_size(total: int, ranks: int, batch: int, step: int) -> int:
    """Returns the largest multiple of `step`, at most `batch`, that divides the samples of each of `ranks` ranks; 0 if
    there is none, or if it is below half of `batch` though a rank has more samples than that."""
    each, rest = divmod(total, ranks)
    size = max((size for size in range(step, min(batch, each) + 1, step) if each % size == 0), default=0)
    return 0 if rest or (each > batch and 2 * size < batch) else size


def set_iter_size(param: proto.SolverParameter, steps: int) -> None:
    """Sets iter_size, and changes clip_gradients with it: as in Caffe, that limits the sum over the micro-batches, and
    the limit of their mean is to stay."""
    if param.clip_gradients > 0:
        param.clip_gradients *= steps / max(1, param.iter_size)
    param.iter_size = steps


def data_layers(config: SolverConfig) -> list[proto.LayerParameter]:
    """Returns the layers of the train net that read data in batches of a batch_size."""
    found = []
    for layer in _train_layers(config):
        if layer.bottom:
            continue
        try:
            batch_size_of(layer)
        except ConfigError:  # a layer without bottoms and without a batch_size, such as DummyData
            continue
        found.append(layer)
    return found


def batch_warnings(config: SolverConfig, batch: int, ranks: int) -> Iterator[str]:
    """Warns if the run's global batch is not the one that the solver is meant for (global_batch), with what would make
    it so. batch: samples in the first iteration, over all ranks; known only with a data layer."""
    param, layers = config.message, data_layers(config)
    wanted, steps = param.global_batch, max(1, param.iter_size)
    if not param.HasField("global_batch") or wanted == batch or not layers:
        return
    ways = []
    sized = [*layers, *_indicators(config)]
    if all(settings := [_batch_size_setting(layer, Fraction(wanted, batch)) for layer in sized]):
        ways.append(" ".join(settings))
    # clip_gradients limits the sum over micro-batches, which another iter_size changes; adversarial refuses iter_size.
    if wanted * steps % batch == 0 and param.clip_gradients <= 0 and not param.HasField("adversarial"):
        ways.append(f"--set iter_size={wanted * steps // batch}")
    if wanted * ranks % batch == 0:
        ways.append(_ranks(wanted * ranks // batch))
    advice = f"; {' or '.join(ways)} would make it so" if ways else ""
    yield (
        f"{config.place('global_batch')}: rates and iterations are meant for a global_batch of {wanted}, and this "
        f"run's is {batch} = {product_text(ranks, batch // ranks // steps, steps)}{advice}"
    )


def recurrent_warnings(param: proto.SolverParameter, recurrent: Sequence[str]) -> Iterator[str]:
    """Warns if the micro-batches of an iteration share the states of recurrent layers.

    Such a layer has one state for each sequence of a batch. The micro-batches of a rank go through that state one after
    the other, while each rank has states of its own. recurrent: names of the train net's layers that carry states from
    batch to batch."""
    elastic = param.comm_param.HasField("elastic") and param.comm_param.elastic.batch == proto.ElasticParameter.HOLD
    asked = {"iter_size": param.iter_size > 1, "batch_growth": param.HasField("batch_growth"), "elastic": elastic}
    causes = [field for field, is_there in asked.items() if is_there]
    if causes and recurrent:
        yield (
            f"Layers {', '.join(recurrent)} carry their states from each micro-batch of an iteration to the next "
            f"({', '.join(causes)}). Unless each micro-batch continues the sequences of the one before, or every batch "
            "begins new sequences, give each rank its samples in one batch"
        )


def python_data_warnings(config: SolverConfig, ranks: int) -> Iterator[str]:
    """Warns of each Python layer of the train net that reads data: the engine does not divide these among ranks."""
    for layer in _train_layers(config) if ranks > 1 else ():
        if layer.type == "Python" and not layer.bottom:
            yield (
                f"Layer '{layer.name}' (Python) reads data by itself, on each of {ranks} ranks: unless its code gives "
                "each rank other samples (caffe.solver_rank(), caffe.solver_count()), all train the same"
            )


def _batch_size_setting(layer: proto.LayerParameter, factor: Fraction) -> str:
    """Returns the option that multiplies a layer's batch_size by a factor; "" if that gives no whole number."""
    size = layer.continuation_indicator_param.batch_size or batch_size_of(layer)
    message = next((field.name for field, value in layer.ListFields() if getattr(value, "batch_size", 0) == size), "")
    whole = message and (size * factor).denominator == 1
    return f"--set 'layer[{layer.name}@TRAIN].{message}.batch_size={size * factor}'" if whole else ""


def product_text(ranks: int, batch: int, steps: int) -> str:
    """Returns how messages show a global batch: "4 ranks x 32 x iter_size 1"."""
    return f"{_ranks(ranks)} x {batch} x iter_size {steps}"


def _ranks(number: int) -> str:
    return f"{number} rank{'s' if number > 1 else ''}"
