"""The entry of the command line: runs a verb, and is the only place that exits or prints errors.

engine/verbs/__init__.py says what a verb is, engine/verbs/command_line.py reads the command line. This module imports
little: a verb imports what takes long when it runs, so that --help is quick, and interrupts soon meet main().
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Sequence

from engine.errors import CommError, ConfigError, EngineError, printable, shortened
from engine.host.startup import Interrupts, ReaderGone, allow_files, collect_late, open_streams

RANKS_FAILED = 3  # the exit status where another attempt may succeed
INTERRUPTED = 130  # the shell's status of a process that SIGINT ended

# Errors of the system that no program can avoid, and that are therefore no defects of engine.
REFUSALS = frozenset(
    (
        *(errno.EACCES, errno.EAGAIN, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ELOOP, errno.EMFILE),
        *(errno.ENAMETOOLONG, errno.ENFILE, errno.ENOLCK, errno.ENOMEM, errno.ENOSPC, errno.EPERM, errno.EROFS),
        *(errno.ESTALE, errno.ETXTBSY),
    )
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `engine VERB ...`; returns its exit status: 0, 1 for an error, 2 for wrong usage, 3 where ranks or their
    communication fail in training, 130 when interrupted.

    Args:
        arguments: None: those of this process, whose streams and signals main() then sets up, too.
    """
    interrupts, options = Interrupts(), Namespace(verb="")
    try:
        if arguments is None:
            interrupts.catch()
            open_streams()
            allow_files()
            collect_late()
        from engine.verbs.command_line import parse, run

        try:
            options = parse(sys.argv[1:] if arguments is None else arguments)
        except SystemExit as left:  # after --help, and for wrong usage
            sys.stdout.flush()
            return _fail("", int(left.code)) if left.code else 0
        status = run(options)
        sys.stdout.flush()
        _close_world()
        return status
    except (Exception, KeyboardInterrupt) as error:
        interrupted = interrupts.came
        interrupts.hold()
        return _report(KeyboardInterrupt() if interrupted else error, options.verb)
    finally:
        _settle_stderr()


def _settle_stderr() -> None:
    """Writes what stderr still holds, or throws it away: at its exit Python would change the status if it cannot."""
    try:
        sys.stderr.flush()
    except (OSError, ValueError):
        from engine.report.log import Output

        Output(sys.stderr).settle()


def _report(error: BaseException, verb: str) -> int:
    """Prints what has ended a verb, in one line unless it is a defect; returns the exit status."""
    if isinstance(error, KeyboardInterrupt):
        status = _fail("interrupted", INTERRUPTED)
        _leave_by_signal()
        return status
    if isinstance(error, ReaderGone):
        return _fail("")
    if isinstance(error, EngineError):
        of_all = isinstance(error, ConfigError)
        own = "" if of_all else _rank_note()
        met = verb == "train" and isinstance(error, CommError) and _ranks() is not None  # not if MPI did not come up
        lines = [f"engine: {own}{line}" for line in str(error).splitlines()]
        return _fail("\n".join(lines), RANKS_FAILED if met else 1, of_all)
    if isinstance(error, MemoryError):
        why = f": {error}" if str(error) and "bad_alloc" not in str(error) else ""
        return _fail(_line(f"out of memory{why}"))
    if isinstance(error, OSError) and error.errno in REFUSALS:
        named = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        return _fail(_line(f"{named}{error.strerror}"))
    import traceback

    request = "this is a defect of engine; please report it with the lines above"
    return _fail(printable("".join(traceback.format_exception(error)), lines=True) + _line(request))


def _leave_by_signal() -> None:
    """Ends a rank by SIGINT, if it is one of several and has not called MPI_Init. A launcher does not act on a rank
    that exits before that with a status, and the others would wait there."""
    from engine.host.launch import detect

    launch = detect()
    if launch and launch.job_size > 1 and _ranks() is None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


def _line(text: str) -> str:
    return f"engine: {_rank_note()}{shortened(printable(text))}"


def _ranks():
    """Returns the world if it was made, else None."""
    module = sys.modules.get("engine.comm.world")
    return module.world() if module and module.world.cache_info().currsize else None


def _rank_note() -> str:
    """Returns "[rank 3] " if there are several ranks, else ""."""
    world = _ranks()
    return f"[rank {world.rank}] " if world and world.is_shared else ""


def _close_world() -> None:
    world = _ranks()
    if world:
        world.close()


def _fail(message: str, status: int = 1, of_all: bool = False) -> int:
    """Prints a message once, unless it is empty, ends every rank, and returns the exit status. With several ranks the
    message names the status, too, which a launcher may not pass on.

    Args:
        of_all: whether all ranks meet this error, so that one prints it. If not, and the ranks are not connected yet,
            one rank of each host prints it.
    """
    import re
    import socket

    from engine.host.launch import detect, end_all, is_spokesman, speaks_for_host
    from engine.report.log import Output

    launch = detect()
    if message and launch and launch.job_size > 1:
        message += f" (exit status {status})"
    Output(sys.stdout).settle()  # before stderr is written, for both may be the same terminal
    world = _ranks()
    if world and world.is_shared:
        world.abort(message, status)
    first = is_spokesman()
    if launch and not first:  # rank 0 has not met this error, or its end does not make the launcher end this rank
        named = f"engine: [rank {launch.rank} on {socket.gethostname()}] "
        message = re.sub("^engine: ", named, message, flags=re.MULTILINE) if speaks_for_host() and not of_all else ""
    stderr = Output(sys.stderr)
    stderr.write(f"{message}\n" if message else "")
    stderr.settle()
    if launch and launch.job_size > 1:
        stderr.drain()
        end_all(status)
    _close_world()
    return status
