"""Logs, before the first iteration, what is trained, in which batches, on which cores and links."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from typing import TYPE_CHECKING

from engine.comm import settings as comm_settings
from engine.config import nets_of_solver
from engine.config.phases import unknown_stages
from engine.data.decode import slow_jpegs
from engine.data.prefetch import data_threads
from engine.data.side_by_side import same_samples, torn_pairs
from engine.host.cores import clash_warning, core_plan, host_and_cores, ignored_variables
from engine.report.log import log, warn
from engine.solver.global_batch import batch_warnings, python_data_warnings, recurrent_warnings
from engine.solver.outline import Outline
from engine.solver.validate import notes

if TYPE_CHECKING:
    from engine.comm.world import World
    from engine.data.feeder import Feeder, Item
    from engine.solver.solver import Solver


def log_plan(solver: Solver) -> None:
    """Collective. Logs what is to be trained, and how, with warnings and notes."""
    log(f"Solving {solver.net.name}")
    log(f"Learning Rate Policy: {solver.param.lr_policy}")
    log(_batch_line(solver))
    log(_first_sample_line(solver))
    outline = Outline(solver.given, solver.param, solver.calendar, solver.feeder.size, bool(solver.begun_from))
    for line in outline.lines():
        log(line)
    for text in _warnings(solver, outline) if solver.world.rank == 0 else ():
        warn(text)
    for note in _notes(solver) if solver.world.rank == 0 else ():
        log(f"Note: {note}")
    if solver.model_parallel:
        log(f"Model parallelism: {solver.model_parallel.describe()}")
    _log_cores(solver)
    if solver.world.size > 1:
        log(f"Link: {solver.world.links()}")
    ignored = comm_settings.ignored_variables() if solver.world.size > 1 else []
    for line in [*ignored, *ignored_variables()]:
        log(line)


def _notes(solver: Solver) -> Iterable[str]:
    """Returns the notes on the solver and its nets, each once: several nets may be of one file. A note tells what has
    no effect, or another one than its text says."""
    nets = nets_of_solver(solver.config)
    of_nets = [net.notes for net in (nets.train, nets.discriminator, *nets.tests) if net]
    return dict.fromkeys(chain(solver.config.notes, notes(solver.given), *of_nets))


def _warnings(solver: Solver, outline: Outline) -> Iterator[str]:
    """Yields what the solver's numbers, its nets and their data probably do not mean."""
    yield from batch_warnings(solver.config, solver.calendar.batch, solver.world.size)
    yield from outline.doubts()
    yield from recurrent_warnings(solver.param, [layer.name for layer in solver.net.graph.recurrent])
    yield from python_data_warnings(solver.config, solver.world.size)
    yield from dict.fromkeys(_unknown_stages(solver))
    if solver.net.all_params() and not solver.net.parameters:
        yield "Nothing is learned: every parameter of the net has lr_mult: 0"
    trained = {(each.layer, each.index) for each in solver.net.all_params()}
    for number, evaluator in enumerate(solver.test_nets.evaluators):
        own = evaluator.net.own_params()
        if untrained := {each.layer: None for each in own if (each.layer, each.index) not in trained}:
            yield f"Test net #{number}: not in the train net, so with initial values: {', '.join(untrained)}"
    for one, other, source in same_samples(solver.feeder.opened):
        yield (
            f"Layers '{one}' and '{other}' read the same samples of {source} and change them alike. For pairs of "
            "different samples give each a list of its own: lines of one number go together"
        )
    for one, other, why in dict.fromkeys(found for feeder in solver.feeders for found in torn_pairs(feeder.opened)):
        yield (
            f"Layers '{one}' and '{other}' do not give pairs: {why}. If lines of one number belong together, both need "
            "as many items, the same shuffle and the same rand_skip"
        )
    if slow_jpegs():
        yield slow_jpegs()


def _unknown_stages(solver: Solver) -> Iterator[str]:
    nets = nets_of_solver(solver.config)
    for net in (nets.train, nets.discriminator, *nets.tests):
        if net is not None:
            yield from (f"{net.path}: {text}" for text in unknown_stages(net.message, net.message.state.stage))


def _batch_line(solver: Solver) -> str:
    """Returns what makes a global batch, and how gradients are reduced."""
    images, samples = solver.calendar.size, solver.calendar.batch * solver.calendar.rows
    batch = solver.feeder.batch_size or solver.calendar.rows
    epoch = f", {images / samples:.1f} iterations per epoch of {images} samples" if images else ""
    ranks, threads = (
        f"{number} {what}{'s' if number > 1 else ''}"
        for number, what in ((solver.world.size, "rank"), (solver.optimizer.threads, "thread"))
    )
    return (
        f"Global batch {samples} = {ranks} x {batch} x iter_size {max(1, solver.param.iter_size)}{epoch}; "
        f"{solver.optimizer.describe()}; {threads} per rank"
    )


def _first_sample_line(solver: Solver) -> str:
    """Returns which sample comes first: two runs with the same line see the same pictures in the same order."""
    sample, size = solver.state.samples_seen * solver.calendar.rows, solver.calendar.size
    epoch = f" (epoch {sample / size:.6g})" if size else ""
    return f"Iteration {solver.iteration} begins with sample {sample}{epoch} of the order of seed {solver.seed}"


def _log_cores(solver: Solver) -> None:
    """Collective. Logs which threads run on which cores, and warns where they are in each other's way."""
    from engine.host import _core

    world, strategy = solver.world, solver.optimizer.strategy
    cores = None if world.size == 1 else strategy.settings.cores
    line, warning = core_plan(
        host_and_cores(),
        world.places(),
        threads=solver.optimizer.threads,
        servers=strategy.server_count,
        server_cores=cores and cores[: strategy.server_count],
        decoders=data_threads() if solver.feeder.size else 0,
        bound=_core.bound_cores(),
    )
    log(line)
    for text in (warning, clash_warning(world)):
        if text and world.rank == 0:
            warn(text)


def log_skipped(world: World, feeders: Sequence[Feeder]) -> None:
    """Collective, after a run. Logs which images --skip_bad_images left out on any rank, and how many were converted
    between grey and colour."""
    _log_skipped(world.gather(_skipped(feeders)) or [])


def log_own_skipped(feeders: Sequence[Feeder]) -> None:
    """Logs the same of this rank alone, after an error: other ranks may not take part in a gather any more."""
    _log_skipped([_skipped(feeders)])


def _skipped(feeders: Sequence[Feeder]) -> tuple[dict[tuple[int, Item], tuple[str, str]], int]:
    """Returns, of this rank, the images that were left out, as (key, reason) by feeder and item, and how many were
    converted between grey and colour."""
    skipped = {(number, item): found for number, each in enumerate(feeders) for item, found in each.skipped.items()}
    return skipped, sum(feeder.recoloured for feeder in feeders)


def _log_skipped(found: Sequence[tuple[dict[tuple[int, Item], tuple[str, str]], int]]) -> None:
    if recoloured := sum(count for _, count in found):
        log(f"{recoloured} images were converted between grey and colour, to match the first one.")
    skipped = {item: each for of_rank, _ in found for item, each in of_rank.items()}
    for key, why in list(skipped.values())[:10]:
        warn(f"Skipped '{key}': {why}")
    if skipped:
        warn(f"Skipped {len(skipped)} undecodable images; each was replaced by the next one that can be decoded.")


def warn_of_other_classes(train: Feeder, test: Feeder) -> None:
    """Warns if the classes of the two differ, by their folders or by their labels.txt: each numbers its own, so that
    where one lacks a class all labels after it mean other classes."""
    named = [[list(reader.classes) for reader in feeder.readers.values() if reader.classes] for feeder in (train, test)]
    if not all(named) or named[0][0] == named[1][0]:
        return
    pairs = enumerate(zip_longest(named[0][0], named[1][0], fillvalue="no class"))
    label, (trained, tested) = next((label, names) for label, names in pairs if names[0] != names[1])
    warn(
        f"The train data and the test data differ in their classes: label {label} is '{trained}' of the one, and "
        f"'{tested}' of the other. Give both the same class folders, or convert both from the same"
    )
