"""Several solvers in a row, `engine train --solver a,b,c`: each begins with the weights that the one before leaves.

The samples of all stages are one sequence: a stage goes on in it where the one before has stopped, so that no epoch's
order and no augmentation comes twice. A stage whose solver has `weights` branches off: it begins with those, which an
earlier stage may have left. --resume auto finds its place in the row by the snapshots: each holds the digest of the
weights with which its stage began, so that a snapshot that another run left under the same name does not count.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from engine import proto
from engine.comm.world import World
from engine.config import SolverConfig, net_of_solver
from engine.config.solver_nets import texts_of
from engine.data.source_shapes import SourceShapes
from engine.errors import FILE, ConfigError, EngineError, WeightsError, shape_text, together
from engine.files import is_regular, opened, take_in
from engine.graph.build import build
from engine.report.log import log, warn
from engine.solver.global_batch import data_batch, hold_global_batch
from engine.solver.goals import check_goals, wanted
from engine.solver.resolve import divided, is_given, shorten
from engine.solver.resume import OTHERS, Snapshot, known, newest
from engine.solver.snapshot_files import snapshot_prefix
from engine.solver.validate import saves, validate

# What follows the snapshot_prefix in the name of weights: their iteration, their kind, their format.
_LEFT = re.compile(r"_(?:iter_([0-9]+)(_best|_ema)?|best)\.caffemodel(\.h5)?")


@dataclass(frozen=True)
class Position:
    """Where a training in stages goes on.

    index: of the stage. snapshot: the stage's own, from which it goes on, or None. weights: with which the stage
    begins, or has begun. first_sample: the stage's first, in the sequence of all stages. begun_from: the digest of
    `weights`; "" without any.
    """

    index: int = 0
    snapshot: str | None = None
    weights: list[str] = field(default_factory=list)
    first_sample: int = 0
    begun_from: str = ""


def follow_prefixes(configs: Sequence[SolverConfig]) -> None:
    """Corrects `weights` that name what an earlier stage leaves, where --set gave that stage another snapshot_prefix.

    By the prefix in the stage's file, another run may have left such weights; this run leaves them by the new prefix. A
    note tells of each correction. Weights that --set names are not changed."""
    prefixes = [snapshot_prefix(config, World()) for config in configs]
    own = [snapshot_prefix(_as_written(config), World()) for config in configs]
    for index, config in enumerate(configs):
        for number, path in enumerate(config.message.weights):
            stage = _leaver(own[:index], path)
            if stage is None or path not in config.own_weights or _leaver(prefixes[:index], path) is not None:
                continue
            instead = prefixes[stage] + path[len(own[stage]) :]
            config.message.weights[number] = instead
            config.notes.append(
                f"{config.place('weights')}: weights '{path}' are what stage {stage + 1} leaves, and its "
                f"snapshot_prefix is {prefixes[stage]} here: taking those that it leaves there"
            )


def _as_written(config: SolverConfig) -> SolverConfig:
    """Returns the solver with the snapshot_prefix of its file."""
    message = proto.SolverParameter()
    message.CopyFrom(config.message)
    message.snapshot_prefix = config.own_prefix
    return replace(config, message=message)


def shorten_stages(configs: Sequence[SolverConfig], divisor: int) -> None:
    """Divides the lengths of all stages: see resolve.shorten(). `weights` that name what an earlier stage leaves at an
    iteration then name what the shortened stage leaves in its place."""
    prefixes = [snapshot_prefix(config, World()) for config in configs]
    before = [(config.message.max_iter, config.message.snapshot) for config in configs]
    for config in configs:
        shorten(config.message, divisor)
    for index, config in enumerate(configs):
        for number, path in enumerate(config.message.weights):
            stage = _leaver(prefixes[:index], path)
            left = _LEFT.fullmatch(path, len(prefixes[stage])) if stage is not None else None
            if stage is None or not left or left[1] is None:
                continue
            found, now = int(left[1]), configs[stage].message
            length, every = before[stage]
            if found == length:
                instead = now.max_iter
            elif every and not found % every:
                instead = found // every * now.snapshot
                instead = min(instead, now.max_iter) if length else instead
            elif now.max_epoch or now.snapshot_epoch:  # epochs are rounded down: see Calendar.iterations()
                instead = max(1, found // divisor)
            else:
                instead = divided(found, divisor)
            config.message.weights[number] = f"{path[: left.start(1)]}{instead}{path[left.end(1) :]}"


def check_stages(configs: Sequence[SolverConfig], world: World, skip_bad_images: bool = False) -> None:
    """Raises ConfigError or ConfigErrors, before the first of several stages begins, for what would end a later one."""
    if len(configs) < 2:
        return
    errors: list[ConfigError] = []
    for number, config in enumerate(configs, start=1):
        try:
            validate(config.message, config.place)
        except ConfigError as error:
            errors += error.errors
        if number < len(configs) and not config.message.snapshot_after_train:
            why = f"stage {number + 1} begins with what stage {number} leaves, and that takes no snapshot at its end"
            errors.append(
                ConfigError(f"snapshot_after_train: expected true; {why}", config.place("snapshot_after_train"))
            )
    if not errors:
        errors += [*_same_prefixes(configs, world), *_missing_weights(configs, world)]
        errors += _bad_beginnings(configs, world, skip_bad_images)
    if errors:
        raise together(errors)


def texts_of_stages(configs: Sequence[SolverConfig]) -> dict[str, str]:
    """Returns texts_of() all solvers, named by their stages if there are several."""
    names = [f" of stage {number}" if len(configs) > 1 else "" for number in range(1, len(configs) + 1)]
    found = zip(names, map(texts_of, configs), strict=True)
    return {f"{what}{name}": text for name, texts in found for what, text in texts.items()}


def _same_prefixes(configs: Sequence[SolverConfig], world: World) -> Iterator[ConfigError]:
    """Yields an error for stages that would take each other's snapshots for their own."""
    seen: dict[str, int] = {}
    for number, config in enumerate(configs, start=1):
        prefix = snapshot_prefix(config, world)
        if saves(config.message) and prefix in seen:
            yield ConfigError(
                f"stages {seen[prefix]} and {number} have the same snapshot_prefix '{prefix}'; give each its own, or a "
                "folder for all (--set snapshot_prefix=FOLDER/), in which each has its solver's name",
                config.place("snapshot_prefix"),
            )
        seen.setdefault(prefix, number)


def _missing_weights(configs: Sequence[SolverConfig], world: World) -> Iterator[ConfigError]:
    """Yields an error for `weights` that neither exist nor are left by an earlier stage."""
    prefixes: list[str] = []
    for number, config in enumerate(configs, start=1):
        for path in config.message.weights:
            stage = _leaver(prefixes, path)
            if stage is None and not is_regular(path):
                earlier = "; earlier stages leave " + " or ".join(f"{prefix}_iter_N.caffemodel" for prefix in prefixes)
                what = f"weights '{path}' of stage {number} are not there{earlier if prefixes else ''}"
                yield ConfigError(what, config.place("weights"))
            elif stage is not None and (why := _why_not_left(configs[stage].message, prefixes[stage], path)):
                yield ConfigError(
                    f"weights '{path}' of stage {number}: stage {stage + 1} {why}", config.place("weights")
                )
        prefixes.append(snapshot_prefix(config, world))


def _leaver(prefixes: Sequence[str], path: str) -> int | None:
    """Returns the index of the stage that leaves a file of weights, None if none does.

    Of several stages whose prefixes fit, it is that of the longest, as `a_iter_1` may be a prefix, too; of several with
    one prefix the last, which writes over the others' files."""
    named = [
        index
        for index, prefix in enumerate(prefixes)
        if re.fullmatch(rf"{re.escape(prefix)}_(iter_[0-9]+\D.*|best\.caffemodel(\.h5)?)", path)
    ]
    return max(named, key=lambda index: (len(prefixes[index]), index), default=None)


def _why_not_left(param: proto.SolverParameter, prefix: str, path: str) -> str | None:
    """Returns why the stage of this prefix does not leave these weights; None if it does, or if that is not known."""
    found = _LEFT.fullmatch(path, len(prefix))
    if not found:
        return "leaves no file of such a name"
    number, kind, suffix = found.groups()
    wanted_format = "HDF5" if suffix else "BINARYPROTO"
    if param.snapshot_format != proto.SolverParameter.SnapshotFormat.Value(wanted_format):
        return f"leaves no file of that format; give it snapshot_format: {wanted_format}"
    if kind == "_best" or number is None:
        return None if param.snapshot_best else "has no snapshot_best"
    if kind == "_ema" and not param.ema:
        return "has no ema"
    if not is_given(param, "max_iter") or param.HasField("snapshot_epoch"):
        return None
    iteration, last, every = int(number), param.max_iter, param.snapshot
    if iteration == last and param.HasField("early_stopping"):
        return "may end before, by early_stopping; without weights a stage begins with what the one before it leaves"
    if iteration == last or (0 < iteration < last and every > 0 and not iteration % every):
        return None
    often = f"every {every} iterations and " if every else ""
    return f"takes snapshots {often}at its end, {last}"


def _bad_beginnings(configs: Sequence[SolverConfig], world: World, skip_bad_images: bool) -> Iterator[ConfigError]:
    """Yields errors for nets that cannot begin with the weights of the stage before, or of the one from which they
    branch off."""
    prefixes = [snapshot_prefix(config, world) for config in configs]
    shapes: list[dict[str, list[tuple[int, ...]]]] = []
    for index, config in enumerate(configs):
        try:
            net = net_of_solver(config, proto.TRAIN)
            shapes_of = SourceShapes(
                net.message, proto.TRAIN, lambda note: None, ranks=config.ranks, skip_bad_images=skip_bad_images
            )
            graph = build(net, proto.TRAIN, shapes_of=shapes_of)
            check_goals(config)
        except ConfigError as error:
            yield from error.errors
            return
        shapes.append({layer.name: [param.shape for param in layer.params] for layer in graph.layers if layer.params})
        given = list(config.message.weights)
        begins_with = [index - 1] if not given else [_leaver(prefixes[:index], path) for path in given]
        for before in begins_with:
            if before is not None and before >= 0:
                yield from _bad_beginning(shapes[before], shapes[index], before + 1, index + 1, net.path)


def _bad_beginning(
    theirs: dict[str, list[tuple[int, ...]]], ours: dict[str, list[tuple[int, ...]]], before: int, stage: int, path: str
) -> Iterator[ConfigError]:
    """Yields an error for the first layer whose shapes differ, or if no layer is common.

    theirs, ours: the shapes of parameters by layer. before, stage: the numbers of their stages. path: of our net."""
    shared = [name for name in ours if name in theirs]
    if not shared:
        yield ConfigError(f"the net of stage {stage} has no layer in common with that of stage {before}", path)
    name = next((name for name in shared if ours[name] != theirs[name]), None)
    if name is not None:
        there, here = (" and ".join(map(shape_text, shapes[name])) for shapes in (theirs, ours))
        yield ConfigError(
            f"layer '{name}' of stage {stage} has parameters of {here}, and it begins with those of stage {before}, of "
            f"{there}; give it another name",
            path,
        )


def resume_stages(configs: Sequence[SolverConfig], world: World, weights: Sequence[str]) -> Position:
    """Collective, for --resume auto. Returns where the row goes on by its snapshots, and makes the solvers from there
    on keep their global batches.

    weights: those of --weights. Raises ConfigError if a global batch cannot be held."""
    found = _find(configs, world, weights) if world.rank == 0 else (Position(), None, None)
    position, own, before = world.broadcast_object(found)
    last = own or before
    if last is None:
        log("No snapshot to go on from")
        return position
    batches = [data_batch(config) for config in configs]  # samples of one rank, by the files
    ranks = last.global_batch // batches[position.index - (own is None)] if last.global_batch else last.ranks
    for index in range(position.index, len(configs)):
        total = last.global_batch if own and index == position.index else ranks and ranks * batches[index]
        hold_global_batch(configs[index], world, replace(last, global_batch=total))
    return position


def _find(
    configs: Sequence[SolverConfig], world: World, weights: Sequence[str]
) -> tuple[Position, Snapshot | None, Snapshot | None]:
    """Returns the position, the snapshot of its stage, and the last snapshot of the stage before, if there are these.
    For the rank that reads files."""
    before, gone, old = None, None, known()
    try:
        position = first_position(configs, weights)
    except WeightsError as error:  # the run has begun with them, perhaps, and they are gone since
        gone, position = error, Position(weights=list(weights or configs[0].message.weights))
    for index, config in enumerate(configs):
        if before is not None:
            position = next_position(configs, position, before.model, before.samples_seen or 0)
        own = newest(snapshot_prefix(config, world), old, position.begun_from or None)
        if gone and before is None and own is None:
            raise gone
        is_last = index == len(configs) - 1
        if own is None or is_last or not _is_over(config, own) or _lacks_test(configs, world, position, own):
            if own and not _is_over(config, own) and _ended(own):
                _warn_of_an_end(config, own)
            _check_later(configs, world, index + 1)
            return replace(position, snapshot=own.path if own else None), own, before
        log(f"Stage {index + 1} of {len(configs)} is done: {own.path}")
        before = own
    raise AssertionError("the last stage returns")


def _check_later(configs: Sequence[SolverConfig], world: World, following: int) -> None:
    """Raises EngineError if a stage from index `following` on has a snapshot. The stage before that has not come to its
    end: the snapshot is of another run, or what it began with is lost, and this run would write others in its place."""
    for index in range(following, len(configs)):
        if later := newest(snapshot_prefix(configs[index], world), known()):
            raise EngineError(
                f"a snapshot of stage {index + 1}, and stage {index} has not come to its end; {OTHERS}", later.path
            )


def _warn_of_an_end(config: SolverConfig, snapshot: Snapshot) -> None:
    """Warns that the run goes on from where another one, perhaps a trial with --shorten, was to end."""
    message = config.message
    there = f"{snapshot.max_epoch:g} epochs" if snapshot.max_epoch else f"iteration {snapshot.max_iter}"
    here = f"{message.max_epoch:g} epochs" if is_given(message, "max_epoch") else f"iteration {message.max_iter}"
    warn(
        f"{snapshot.path} is of a run that was to end there, after {there}, and this one goes on from it to {here}: "
        "give another snapshot_prefix if this is another run"
    )


def _ended(snapshot: Snapshot) -> bool:
    """Tells whether the run that took the snapshot was to end there."""
    return snapshot.max_iter is not None and snapshot.iteration >= snapshot.max_iter


def _is_over(config: SolverConfig, snapshot: Snapshot) -> bool:
    """Tells whether a stage has come to its end: at max_iter or max_epoch, or by early_stopping. A snapshot holds both
    of its own run, for only that knows how many iterations an epoch has."""
    message = config.message
    if message.HasField("early_stopping") and snapshot.tests_without_gain >= message.early_stopping.patience:
        return True
    if is_given(message, "max_iter"):
        return snapshot.iteration >= message.max_iter
    return _ended(snapshot) and snapshot.max_epoch in (None, message.max_epoch)


def _lacks_test(configs: Sequence[SolverConfig], world: World, at: Position, last: Snapshot) -> bool:
    """Tells whether a stage was stopped between its last snapshot and its last test, which may find the best weights,
    and the next stage has not begun."""
    param = configs[at.index].message
    if last.last_judged == last.iteration or not (wanted(param, "snapshot_best") or wanted(param, "early_stopping")):
        return False
    try:
        following = next_position(configs, at, last.model, last.samples_seen or 0)
    except WeightsError:  # no test has left the weights with which the next begins
        return True
    return newest(snapshot_prefix(configs[following.index], world), known(), following.begun_from) is None


def first_position(configs: Sequence[SolverConfig], weights: Sequence[str]) -> Position:
    """Returns the beginning of the row. For the rank that reads files.

    weights: those of --weights; if there are none, the first solver's count. Raises WeightsError if weights cannot be
    read."""
    if weights:
        return Position(weights=list(weights), begun_from=digest_of(weights))
    own = list(configs[0].message.weights)
    return Position(weights=own, begun_from=digest_of(own, configs[0]) if own else "")


def next_position(configs: Sequence[SolverConfig], at: Position, model: str, samples_seen: int) -> Position:
    """Returns the beginning of the stage that follows the one at `at`. For the rank that reads files.

    model: the weights that the stage at `at` has left. samples_seen: where it has stopped in the sequence of samples.
    Raises WeightsError if weights cannot be read."""
    index = at.index + 1
    own = list(configs[index].message.weights)
    digest = digest_of(own, configs[index]) if own else digest_of([model])
    return Position(index, None, own or [model], samples_seen, digest)


def digest_of(paths: Sequence[str], solver: SolverConfig | None = None) -> str:
    """Returns the SHA-256 of files of weights, in hexadecimal. Raises WeightsError if one cannot be read.

    solver: the one that names them in `weights`, for the error."""
    found = hashlib.sha256()
    for path in paths:
        where = solver.place("weights") if solver else None
        try:
            with opened(path, WeightsError, where) as file:
                take_in(file, found)
        except WeightsError as error:
            if solver is None or error.absent != FILE:
                raise
            raise WeightsError(
                f"weights '{path}': no such file; if another solver leaves it, train that one first, or both in a row "
                "(--solver A,B); --weights gives others",
                where,
                absent=FILE,
            ) from None
    return found.hexdigest()
