"""How a rank starts its sentinel and speaks to it. Sentinels notice when a rank dies or hangs, and end the others.

Launchers cannot be relied on for that: some print only a process id, some wait for ever. A sentinel is a small process
beside each rank, started before MPI. It has no descriptor of the rank but stderr and the board, and a session of its
own, so that the launcher's clean-up does not reach it before it has printed why. See __init__.py for what it does.
"""

import contextlib
import ctypes
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, cast

from engine.errors import printable
from engine.watchdog.board import Board
from engine.watchdog.hub import say
from engine.watchdog.wire import JOIN_PAUSE, JOIN_SECONDS, connect, send


class Sentinel:
    def __init__(self, rank: int, board: Board, seconds: float = 0):
        """Starts the sentinel.

        Args:
            rank: the number of this rank.
            board: what it writes its progress on.
            seconds: how long it may make no progress (SLOW_FACTOR times as long in its set-up); 0: for ever.
        """
        program = Path(__file__).parent
        arguments = (rank, os.getpid(), board.descriptor, seconds)
        self._rank, self._ranks = rank, 1
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(program), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=[board.descriptor],
            text=True,
        )
        # Python closes its end of the pipe on its way out, where a rank can still be stopped; the system closes this.
        self._to, self._from = cast(IO[str], self._process.stdin), cast(IO[str], self._process.stdout)
        self._alive = os.dup(self._to.fileno())
        self._connection: socket.socket | None = None
        self._at_exit: list[int] = []
        self._left = False
        os.register_at_fork(after_in_child=self._forsake)

    def _forsake(self) -> None:
        """Runs in a process that the user's code has forked, and cuts it off from the sentinel and the hub: its
        connections must neither keep the rank alive nor speak for it. The sentinel is told of the process, to end it if
        the rank dies: it holds the rank's output open, whose end launchers wait for."""
        if self._left:
            return
        with contextlib.suppress(OSError):
            os.write(self._alive, b"child %d\n" % os.getpid())
        kept = [self._alive, self._to.fileno(), *self._at_exit]
        kept += [self._connection.fileno()] if self._connection is not None else []
        nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for descriptor in kept:
            os.dup2(nowhere, descriptor, inheritable=False)
        os.close(nowhere)

    def hub(self, one_host: bool) -> str | None:
        """Opens the hub in rank 0's sentinel. Returns its token and addresses, for join(), on rank 0; None on the
        others.

        Args:
            one_host: whether all ranks are on this host; then the hub cannot be reached from another.
        """
        if self._rank != 0:
            return None
        self._tell(f"listen {'host' if one_host else 'network'}")
        return self._from.readline().strip()

    def join(self, hub: str, ranks: int) -> None:
        """Connects this rank and its sentinel to the hub: from now on the rank's death is noticed. If the hub cannot be
        reached, which stderr is told, the run goes on without that.

        Args:
            hub: what hub() has returned on rank 0.
            ranks: how many there are in all.
        """
        self._tell(f"ranks {ranks}")
        token, *addresses = hub.split() or [""]  # it is empty if rank 0's sentinel has ended already
        hello = f"rank {token} {self._rank} {os.getpid()} {socket.gethostname()}"
        self._connection, until = connect(addresses, hello), time.monotonic() + JOIN_SECONDS
        if addresses and self._connection is None:
            where = f"at {' or '.join(addresses)} for {JOIN_SECONDS:g} s, without which nobody notices its death"
            say(f"engine: rank {self._rank} tries to reach rank 0's sentinel {where}\n")
            while self._connection is None and time.monotonic() < until:
                time.sleep(JOIN_PAUSE)
                self._connection = connect(addresses, hello)
        if not self._tell(f"hub {hub}"):  # somebody has killed the sentinel: the run goes on without it
            self._connection = None
        self._ranks = ranks

    def hear_faults(self, pipe: int = -1) -> None:
        """Has the extension, which it loads, report a fault of a file that is mapped into memory, so that it does not
        count as this rank's death. pipe: see csrc/fault.h."""
        from engine.host import _core

        name = f"[rank {self._rank}] " if self._ranks > 1 else ""
        _core.speak_as(name, pipe, -1 if self._connection is None else self._connection.fileno())

    def watch(self, seconds: float) -> None:
        """Sets how many seconds this rank may make no progress from now on; 0: for ever."""
        self._tell(f"watch {seconds:g}")

    def failed(self) -> bool:
        """Says that this rank is about to abort the run, so that the ends of ranks are not reported from now on.
        Returns whether it is the first to fail, or the hub cannot be asked."""
        if self._connection is None:
            return True
        try:
            self._connection.sendall(b"fail\n")
            return self._connection.recv(16) != b"late\n"
        except OSError:
            return True

    def saved(self, path: str) -> None:
        """Says, on rank 0, which file the run can go on from; it is named when a rank dies."""
        self._tell(f"saved {printable(path)}")

    def leaves(self, locks: list[str], folders: list[str]) -> None:
        """See World.leaves()."""
        self._tell(f"leaves {json.dumps([list(map(os.path.abspath, paths)) for paths in (locks, folders)])}")

    def keeps(self, folders: list[str]) -> None:
        """See World.keeps()."""
        self._tell(f"keeps {json.dumps(list(map(os.path.abspath, folders)))}")

    def outlive(self, others: bool) -> None:
        """Says, on rank 0, whether the others go on when a rank dies from now on, or end."""
        self._tell(f"outlive {int(others)}")

    def leave(self) -> None:
        """Ends the sentinel, where another one takes its place."""
        self.farewell()
        self._left = True
        with contextlib.suppress(OSError):
            self._to.close()
        if self._from is not None:
            self._from.close()
        os.close(self._alive)
        if self._connection is not None:
            self._connection.close()

    def complete(self) -> None:
        """Says that all files of the run are written; it is printed when a rank dies on its way out."""
        if self._connection is not None:
            send(self._connection, "complete")

    def farewell(self) -> None:
        """Says that this rank ends well. The sentinel still watches it, for it may hang on its way out."""
        self._tell("bye")
        if self._connection is not None:
            send(self._connection, "bye")

    def farewell_at_exit(self) -> None:
        """Says so when the last destructor of the process has run, so that a rank that dies before is noticed. A
        process that ends by _exit() does not say it."""
        self._write_at_exit(self._to.fileno())
        if self._connection is not None:
            self._write_at_exit(self._connection.fileno())

    def _tell(self, line: str) -> bool:
        """Sends a line to the sentinel; returns whether that was there to take it."""
        try:
            self._to.write(line + "\n")
            self._to.flush()
        except OSError:
            return False
        return True

    def _write_at_exit(self, descriptor: int) -> None:
        """Leaves "bye" in the buffer of a C stream: exit() writes such buffers at its end, and a process that is killed
        or crashes loses them."""
        libc = ctypes.CDLL(None)
        libc.fdopen.restype, libc.fputs.argtypes = ctypes.c_void_p, (ctypes.c_char_p, ctypes.c_void_p)
        self._at_exit.append(os.dup(descriptor))
        libc.fputs(b"bye\n", libc.fdopen(self._at_exit[-1], b"w"))
