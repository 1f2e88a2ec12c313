"""What rank 0's sentinel does for all ranks: tells which rank failed first, and asks where all are when one is
stuck."""

import contextlib
import errno
import os
import secrets
import select
import selectors
import socket
import time

from engine.errors import printable
from engine.watchdog.report import Answer, rank_name, report
from engine.watchdog.wire import MOST_BYTES, Lines, send

LINGER_SECONDS = 5.0  # that ranks have to end after an abort, and that a hub goes on when its rank has ended
ANSWER_SECONDS = 2.0  # that sentinels have to say where their ranks are
# How long a connection may take to send the token, in a line of how many bytes, and how many such there may be at once.
STRANGER_SECONDS, STRANGER_BYTES, MOST_STRANGERS = 2.0, 256, 4096
SAY_SECONDS, SAY_BYTES = 1.0, 4096  # a pipe that poll() calls ready takes so many bytes without waiting
PAUSE_SECONDS = 1.0  # without listening, after the system has given this process no more connections
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Hub:
    """A connection is a stranger until it sends the token, welcomed until it says `here`, then a rank's or a
    guard's."""

    def __init__(self, selector: selectors.BaseSelector):
        self.selector = selector
        self.token = secrets.token_hex(16)
        self.listeners: list[socket.socket] = []  # until all ranks and sentinels have come
        self.listens_again_at: float | None = None
        self.strangers: dict[socket.socket, tuple[float, Lines]] = {}  # -> when it came, its lines; the oldest first
        self.welcomed: dict[socket.socket, str] = {}  # -> the rank's name, "" for a guard; they may have hung up
        self.ranks: dict[socket.socket, str] = {}  # -> "rank 3 (pid 77 on host)"
        self.expected, self.joined = 0, 0  # numbers of ranks
        self.guards: set[socket.socket] = set()
        self.saved = ""  # the last snapshot
        self.complete = False  # all files of the run are written
        self.outlives = False  # the others go on when a rank dies
        self.told = False  # it has been printed why the ranks die
        self.ended = False  # somebody has failed, died or made no progress
        self.stop_at: float | None = None  # when the sentinels are to kill their ranks
        self.asked_at: float | None = None  # when the sentinels were asked where their ranks are, while answers come
        self.seconds = 0.0  # the limit without progress of the sentinel that was the reason to ask
        self.answers: dict[str, Answer] = {}

    def open(self, addresses: list[str]) -> list[str]:
        """Listens on each of these addresses of this host; returns HOST:PORT of those on which that was possible."""
        for address in addresses:
            with contextlib.suppress(OSError):
                listener = socket.create_server((address, 0), backlog=4096)
                listener.setblocking(False)
                self.listeners.append(listener)
        self.attend()
        return ["{}:{}".format(*listener.getsockname()) for listener in self.listeners]

    def attend(self) -> None:
        """Begins to accept connections, or begins again after ignore()."""
        self.listens_again_at = None
        for listener in self.listeners:
            self.selector.register(listener, selectors.EVENT_READ, lambda listener=listener: self.accept(listener))

    def ignore(self) -> None:
        """Accepts no connections: those that come wait in the listeners' queues."""
        if self.listens_again_at is None:
            for listener in self.listeners:
                self.selector.unregister(listener)

    def close(self) -> None:
        """Ends listening for good, and drops all who have not joined."""
        self.ignore()
        self.listens_again_at = None
        for connection in (*self.strangers, *self.welcomed):
            self.drop(connection)
        for listener in self.listeners:
            listener.close()
        self.listeners.clear()

    def accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError as error:
            if error.errno in _EXHAUSTED and self.strangers:
                self.drop(next(iter(self.strangers)))
            elif error.errno in _EXHAUSTED:
                self.ignore()
                self.listens_again_at = time.monotonic() + PAUSE_SECONDS
            return
        self.admit(connection)

    def admit(self, connection: socket.socket) -> None:
        """Takes a connection as a stranger's, in place of the oldest one if there are too many."""
        if len(self.strangers) >= MOST_STRANGERS:
            self.drop(next(iter(self.strangers)))
        self.strangers[connection] = time.monotonic(), self.listen(connection, STRANGER_BYTES)

    def listen(self, connection: socket.socket, most: int = MOST_BYTES) -> Lines:
        """Hears what comes from a connection; returns its lines. most: bytes of a line."""
        lines = Lines(connection.fileno(), most)
        self.selector.register(connection, selectors.EVENT_READ, lambda: self.hear(connection, lines))
        return lines

    def hear(self, connection: socket.socket, lines: Lines) -> None:
        heard = lines.read()
        try:
            for line in heard or []:
                self.hear_line(connection, *line.split(" "))
        except ValueError:  # not from engine
            heard = None
        if heard is None:
            if connection in self.ranks and not self.ended:
                self.died(self.ranks[connection])
            self.drop(connection)

    def hear_line(self, connection: socket.socket, word: str, *rest: str) -> None:
        if connection in self.ranks:
            self.hear_rank(connection, word)
        elif connection in self.guards:
            self.hear_guard(connection, word, list(rest))
        elif connection in self.welcomed:
            self.enrol(connection, word)
        elif connection in self.strangers:
            self.welcome(connection, word, *rest)

    def welcome(self, connection: socket.socket, word: str, token: str = "", *rest: str) -> None:
        """Answers a stranger's first line. Raises ValueError if its token is wrong, or if it does not say who it is."""
        if word not in ("rank", "guard") or not secrets.compare_digest(token.encode(), self.token.encode()):
            raise ValueError(word)
        name = ""
        if word == "rank":
            rank, pid, host = rest
            name = rank_name(rank, pid, host)
        _, lines = self.strangers.pop(connection)
        lines.most = MOST_BYTES
        self.welcomed[connection] = name
        send(connection, "welcome")

    def enrol(self, connection: socket.socket, word: str) -> None:
        """Counts a rank or a guard as here when it says that it has read the welcome. One that has waited too long for
        that has hung up, and comes again: it must not count twice. Raises ValueError if it says anything else."""
        if word != "here":
            raise ValueError(word)
        if name := self.welcomed.pop(connection):
            self.ranks[connection] = name
            self.joined += 1
        else:
            self.guards.add(connection)

    @property
    def has_everybody(self) -> bool:
        """Whether all ranks have come, and their sentinels."""
        return 0 < self.expected <= min(self.joined, len(self.guards))

    def drop_strangers(self, now: float) -> None:
        """Drops strangers whose time is over. What they have sent while this process could not read is heard before."""
        for connection, (since, lines) in list(self.strangers.items()):
            if now - since < STRANGER_SECONDS:
                return
            if _has_come(connection):
                self.hear(connection, lines)
            if connection in self.strangers:
                self.drop(connection)

    def hear_rank(self, connection: socket.socket, word: str) -> None:
        if word == "fail":
            send(connection, "late" if self.ended else "first")
            self.end(LINGER_SECONDS)
        elif word == "complete":
            self.complete = True
        elif word == "bye":
            self.ranks.pop(connection, None)

    def hear_guard(self, connection: socket.socket, word: str, rest: list[str]) -> None:
        if word == "at":
            answer = Answer.parse(rest)
            self.answers[answer.name] = answer
        elif word == "stuck" and not self.ended and self.asked_at is None:
            self.asked_at, self.seconds, self.answers = time.monotonic(), float(rest[0]), {}
            for guard in self.guards:
                send(guard, "where")
        elif word == "stuck":
            send(connection, "wait")

    def died(self, rank: str) -> None:
        """Prints which rank has died, and ends the others unless they outlive it."""
        # The kernel ends the largest process when memory runs out, and only its log says so.
        how = "died, killed or crashed (dmesg tells whether for want of memory)"
        if self.outlives:
            say(f"engine: {rank} {how}: the others go on without it\n")
            return
        # Before all have joined, the first that died may be one that has not: the launcher says which.
        if self.joined >= self.expected and not self.told:
            safe = f"; {self.safe()}" if self.safe() else ""
            say(f"engine: {rank} {how}: stopping all ranks{safe}\n")
        self.end(0)

    def safe(self) -> str:
        """Returns what a run that is stopped leaves, or ""."""
        if self.complete:
            return "the run was complete, all its files are written"
        return f"the last snapshot is {self.saved}" if self.saved else ""

    def judge(self) -> None:
        """Decides, when the answers have come, whether the ranks hang: then it prints where they are, and ends them;
        else it has the sentinels wait."""
        self.asked_at = None
        silent = [name for name in self.ranks.values() if name not in self.answers]
        answers = list(self.answers.values())  # also of ranks that hang after their farewell
        # All are stopped, or those that are not have just been let go on. A single rank that is left does not count.
        suspended = len(answers) >= self.expected and all(
            answer.state == "T" or answer.idle < self.seconds / 2 for answer in answers
        )
        # A rank may wait for others for long; the ranks that wait for nobody are those that must make progress.
        awaited = [answer for answer in answers if not answer.waits] or answers
        goes_on = any(answer.idle < self.seconds for answer in awaited)
        screen_is_stopped = os.isatty(2) and not _takes(2)  # by Ctrl-S: the log waits for it
        if suspended or goes_on or screen_is_stopped or self.ended:
            for guard in self.guards:
                send(guard, "wait")
            return
        say(report(self.seconds, answers, silent, self.safe()))
        self.end(0)

    def end(self, seconds: float) -> None:
        """Has the ranks killed after so many seconds."""
        if not self.ended:
            self.ended = True
            self.stop_at = time.monotonic() + seconds

    def tick(self, now: float) -> None:
        if self.listeners and self.has_everybody:
            self.close()
        if self.listens_again_at is not None and self.listens_again_at <= now:
            self.attend()
        self.drop_strangers(now)
        if self.asked_at is not None:
            if len(self.answers) >= len(self.guards) or now - self.asked_at >= ANSWER_SECONDS:
                self.judge()
        if self.stop_at is not None and self.stop_at <= now:
            self.stop_at = None
            for guard in self.guards:
                send(guard, "stop")

    @property
    def hurries(self) -> bool:
        """Whether tick() has something to do soon."""
        waits = (self.stop_at, self.asked_at, self.listens_again_at)
        return bool(self.strangers) or any(moment is not None for moment in waits)

    def drop(self, connection: socket.socket) -> None:
        self.selector.unregister(connection)
        self.strangers.pop(connection, None)
        self.welcomed.pop(connection, None)
        self.ranks.pop(connection, None)
        self.guards.discard(connection)
        connection.close()


def _has_come(connection: socket.socket) -> bool:
    """Returns whether there is something to read, or the end of the connection."""
    looks = select.poll()  # select() takes no descriptor above 1023
    looks.register(connection, select.POLLIN)
    return bool(looks.poll(0))


def say(text: str) -> None:
    """Writes text to stderr, as far as that takes it: the end of a run does not wait for a reader who does not read."""
    rest = printable(text, lines=True).encode()
    with contextlib.suppress(OSError):
        while rest and _takes(2, SAY_SECONDS):
            rest = rest[os.write(2, rest[:SAY_BYTES]) :]


def _takes(descriptor: int, seconds: float = 0) -> bool:
    """Returns whether a descriptor takes SAY_BYTES without waiting, now or within so many seconds."""
    looks = select.poll()
    looks.register(descriptor, select.POLLOUT)
    return bool(looks.poll(1000 * seconds))
