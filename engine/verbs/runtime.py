"""Helpers that several verbs share when they run: they start the ranks, read nets and solvers as the options change
them, and print.

A verb imports this module in its run(), not before."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from engine.comm.world import World
    from engine.config import NetConfig, SolverConfig
    from engine.data.convert_imageset import Output

_OF_STAGE = re.compile(r"([0-9]{1,6}):(.*)", re.DOTALL)
_READ = ("solver", "model", "data", "profile", "weights", "snapshot", "kernels")  # arguments that name files to read
_WRITTEN = ("json", "timeline", "output", "target")  # arguments that name files to write


def start(watched: bool = False, output: str | None = None, reading: Namespace | None = None) -> World:
    """Sets up the ranks, divides cores and memory of a host among them, and sends the log to stderr. Returns the world.

    Args:
        watched: whether to start the watchdog.
        output: a file that rank 0 will write at the end ("-": stdout).
        reading: arguments that name files which the verb reads.

    Raises:
        EngineError: `output` cannot be written, or is a file that the verb reads.
    """
    from engine.comm.settings import watchdog_seconds
    from engine.comm.world import world
    from engine.files import check_apart, check_writable
    from engine.host.cores import own_cores, share_cores
    from engine.host.memory import divide_memory
    from engine.report.log import set_up

    own_cores()  # before an MPI library loads libgomp, which may bind this thread to fewer
    ranks = world()
    ranks.is_of_verb = True
    divide_memory(ranks.neighbours)
    if watched:
        ranks.watch(watchdog_seconds())
    set_up(ranks.rank)
    share_cores(ranks.places())
    if ranks.rank == 0 and output not in (None, "-"):
        check_writable(output)
        check_apart(output, *_files_named(reading))
    return ranks


def _files_named(options: Namespace | None) -> list[str]:
    """Returns the files that the arguments of _READ name: each argument as a whole and, if it has commas, each item."""
    found: list[str] = []
    for value in (getattr(options, name, None) or [] for name in _READ):
        found += [value, *value.split(",")] if isinstance(value, str) else value
    return found


def check_outputs(options: Namespace, config: NetConfig | SolverConfig, also: Iterable[str | Path] = ()) -> None:
    """Raises EngineError if a file to write is one that the options name for reading, or that a net or a solver reads.
    It does not look at the pictures of a folder.

    Args:
        config: the net or solver.
        also: files to write that no option names.
    """
    from engine.config import files_read_by
    from engine.data.registry import files_of, recognised
    from engine.errors import DataError
    from engine.files import check_apart

    outputs = [path for name in _WRITTEN if (path := getattr(options, name, None)) not in (None, "-")]
    there = [path for path in (*outputs, *also) if os.path.lexists(path)]  # what is not there is not read
    if not there:
        return
    read = _files_named(options)
    for path in files_read_by(config):
        read.append(path)
        if recognised(path) not in ("", "FOLDER"):
            with contextlib.suppress(DataError):  # the source is not here; not every verb needs it
                read += files_of(path)
    for path in there:
        check_apart(path, *read)


def _install_caffe() -> None:
    import engine.caffe

    engine.caffe.install()


def allow_python_layers(options: Namespace) -> bool:
    """Lets Python layers import their modules if the user has allowed it, by --python_layers or ENGINE_PYTHON_LAYERS=1;
    returns whether. Verbs that only look at nets have no such option, and never do.

    Modules `import caffe`, which is installed before the first of them is imported. Raises ConfigError if
    ENGINE_PYTHON_LAYERS is neither 0 nor 1."""
    from engine.errors import ConfigError
    from engine.layers.python import allow_modules, before_import

    asked = getattr(options, "python_layers", None)
    given = os.environ.get("ENGINE_PYTHON_LAYERS") or "0"
    if asked is False and given not in ("0", "1"):
        raise ConfigError(f"ENGINE_PYTHON_LAYERS must be 0 or 1 (run the code of Python layers); got {given!r}")
    allowed = asked or (asked is not None and given == "1")
    if allowed:
        before_import(_install_caffe)
        allow_modules()
    return bool(allowed)


def asked_solvers(options: Namespace) -> list[SolverConfig]:
    """Returns the solvers of --solver, which commas separate, as the options change them. --set NUMBER:PATH=VALUE
    changes the solver of this number, from 1. Raises ConfigError, also for a number without a solver."""
    from engine.errors import ConfigError
    from engine.solver.stages import follow_prefixes, shorten_stages

    paths = _solver_paths(options)
    asked = [_OF_STAGE.fullmatch(text) for text in options.set]
    for match in asked:
        if match and not 1 <= int(match[1]) <= len(paths):
            raise ConfigError(f"--set {match[0]}: expected a stage from 1 to {len(paths)}")
    found = []
    for number, path in enumerate(paths, start=1):
        texts = zip(options.set, asked, strict=True)
        mine = [match[2] if match else text for text, match in texts if not match or int(match[1]) == number]
        found.append(asked_solver(options, path, mine))
    follow_prefixes(found)
    if divisor := getattr(options, "shorten", None):  # not every verb has this option
        shorten_stages(found, divisor)
    return found


def _solver_paths(options: Namespace) -> list[str]:
    """Returns the paths that --solver names, separated by commas unless a file has that name."""
    return [options.solver] if os.path.exists(options.solver) else [path.strip() for path in options.solver.split(",")]


def _place(config: NetConfig | SolverConfig) -> None:
    """Tells what %# and %* stand for in its paths on this rank."""
    from engine.host.launch import detect

    if launch := detect():
        config.rank, config.ranks = launch.rank, launch.size


def asked_solver(
    options: Namespace, path: str = "", overrides: Sequence[str] | None = None, also: Iterable[str] = ()
) -> SolverConfig:
    """Returns the solver of --solver as the options change it. Raises ConfigErrors, also if --solver names
    several, and EngineError.

    Args:
        path, overrides: in place of --solver and --set.
        also: see check_outputs().
    """
    from engine.config import add_state, read_solver
    from engine.errors import ConfigError

    allow_python_layers(options)
    if not path and len(several := _solver_paths(options)) > 1:
        raise ConfigError(f"{options.verb} takes one solver, got {len(several)}: {', '.join(several)}")
    config = read_solver(path or options.solver, options.set if overrides is None else overrides)
    _place(config)
    check_outputs(options, config, also)
    message = config.message
    if options.precision:
        message.precision = message.Precision.Value(options.precision.upper())
    if getattr(options, "memory_budget", None):
        message.memory_budget_mb = options.memory_budget / 1e6
    add_state(message.train_state, options.level, options.stage)
    return config


def asked_net(options: Namespace, path: str) -> NetConfig:
    """Returns a net in the state that the options give it. Raises ConfigErrors, also for a net without layers."""
    from engine.config import add_state, read_net
    from engine.config.phases import unknown_stages
    from engine.errors import ConfigError
    from engine.report.log import warn

    allow_python_layers(options)
    config = read_net(path, options.set)
    _place(config)
    if not config.message.layer:
        raise ConfigError("the net has no layers", path)
    check_outputs(options, config)
    for text in unknown_stages(config.message, options.stage):
        warn(f"{config.path}: {text}")
    add_state(config.message.state, options.level, options.stage)
    return config


def asked_model(options: Namespace, phase: int) -> NetConfig:
    """Returns the net of --model in a phase. See asked_net()."""
    config = asked_net(options, options.model)
    config.message.state.phase = phase
    return config


def refuse_idle(options: Namespace, flags: Sequence[str], where: str) -> None:
    """Raises ConfigError if one of these flags was given, which has no effect here. where: words that say when it has
    none, such as "without --model"."""
    from engine.errors import ConfigError

    if idle := [flag for flag in flags if flag in options.given]:
        raise ConfigError(f"{', '.join(idle)}: without effect {where}; leave {'them' if idle[1:] else 'it'} out")


def phase_of(name: str) -> int:
    from engine.config.phases import PHASES

    return PHASES[name]


def show(text: str, output: str | None = None) -> None:
    """Prints a result. Control characters are escaped, for names in it may hold anything.

    Args:
        output: the file of --json. If it is "-", stdout is for the JSON alone, and the result goes to stderr.
    """
    from engine.errors import printable

    print(printable(text, lines=True), file=sys.stderr if output == "-" else sys.stdout, flush=True)


def write_json(value: object, path: str) -> None:
    """Writes JSON to a file, or to stdout for "-". Numbers that are not finite become null."""
    from engine.report.json_text import json_text

    text = json_text(value)
    if path == "-":
        print(text)
        return
    from engine.files import atomic_write

    with atomic_write(path) as file:
        file.write(text.encode() + b"\n")


def log_skipped(skipped: Sequence[str]) -> None:
    """Says how many images could not be decoded, and names the first of them."""
    from engine.report.log import log

    if skipped:
        log(f"Skipped {len(skipped)} images that could not be decoded: {', '.join(list(dict.fromkeys(skipped))[:3])}")


def upgrade(options: Namespace, write: Callable[[str, str], list[str]], kind: str) -> int:
    """Runs a verb that writes options.source in the current format to options.target; returns the exit status.

    Args:
        write: takes both paths; returns a line for each older format that it has met.
        kind: Caffe's words for what is written.
    """
    from engine.files import check_apart
    from engine.layers.registry import layer_types
    from engine.report.log import log, set_up

    set_up()
    check_apart(options.target, options.source)
    layer_types()  # loads them: else `write` could not tell an unknown type
    for note in write(options.source, options.target) or [f"File already in latest proto format: {options.source}"]:
        log(note)
    log(f"Wrote upgraded {kind} to {options.target}")
    return 0


def asked_output(options: Namespace, database: bool = False) -> Output:
    """Returns how pictures are written, by the arguments of add_output() or add_sizes(). Raises ConfigError if
    --quality is given where no JPEG is written.

    Args:
        database: whether they go to a database, which holds pixels unless image files are asked for.
    """
    from engine.data.convert_imageset import Output

    if options.encode_type in ("png", "bmp"):
        refuse_idle(options, ("--quality",), f"with --encode_type {options.encode_type}")
    elif database and not (options.encoded or options.encode_type):
        refuse_idle(options, ("--quality",), "without --encoded: pixels are stored")
    return Output(
        height=options.resize_height,
        width=options.resize_width,
        shorter_side=options.shorter_side,
        max_side=options.max_side,
        gray=options.gray,
        encoded=getattr(options, "encoded", True),
        encode_type=options.encode_type,
        quality=options.quality,
    )
