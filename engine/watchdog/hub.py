"""Rank 0's sentinel knows which failure was the first, and asks where all ranks are when one makes no progress."""

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

LINGER_SECONDS = 5.0  # for ranks that an abort does not reach, and for a hub whose rank has ended
ANSWER_SECONDS = 2.0
# What a connection may take and send until it has said the token, and how many such there may be.
STRANGER_SECONDS, STRANGER_BYTES, MOST_STRANGERS = 2.0, 256, 4096
SAY_SECONDS, SAY_BYTES = 1.0, 4096  # what poll() says of a pipe holds for so many
PAUSE_SECONDS = 1.0  # without listening, where the system gives this process no more connections
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Hub:
    def __init__(self, selector: selectors.BaseSelector):
        self.selector = selector
        self.token = secrets.token_hex(16)
        self.listeners: list[socket.socket] = []  # until all ranks and sentinels have come
        self.listens_again_at: float | None = None
        self.strangers: dict[socket.socket, tuple[float, Lines]] = {}  # without the token, since when; the oldest first
        self.welcomed: dict[socket.socket, str] = {}  # with it, but they may have hung up; as in ranks, "" for a guard
        self.ranks: dict[socket.socket, str] = {}  # connection -> "rank 3 (pid 77 on host)"
        self.expected, self.joined = 0, 0  # ranks
        self.guards: set[socket.socket] = set()
        self.saved = ""  # the last snapshot
        self.complete = False  # nobody has anything left to do but to end
        self.outlives = False  # the others go on when a rank dies
        self.told = False  # it has been said why the ranks die
        self.ended = False  # somebody has failed, died or made no progress
        self.stop_at: float | None = None
        self.asked_at: float | None = None  # where everybody is
        self.seconds = 0.0  # without progress, of the rank that was the reason to ask
        self.answers: dict[str, Answer] = {}

    def open(self, addresses: list[str]) -> list[str]:
        """Listens on each of these addresses of this host; returns HOST:PORT of those that can be had."""
        for address in addresses:
            with contextlib.suppress(OSError):
                listener = socket.create_server((address, 0), backlog=4096)
                listener.setblocking(False)
                self.listeners.append(listener)
        self.attend()
        return ["{}:{}".format(*listener.getsockname()) for listener in self.listeners]

    def attend(self) -> None:
        """Listens, for the first time or again."""
        self.listens_again_at = None
        for listener in self.listeners:
            self.selector.register(listener, selectors.EVENT_READ, lambda listener=listener: self.accept(listener))

    def ignore(self) -> None:
        """Leaves those who come waiting."""
        if self.listens_again_at is None:
            for listener in self.listeners:
                self.selector.unregister(listener)

    def close(self) -> None:
        """Nobody is to come any more."""
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
        """For the time that it takes to say the token."""
        if len(self.strangers) >= MOST_STRANGERS:
            self.drop(next(iter(self.strangers)))
        self.strangers[connection] = time.monotonic(), self.listen(connection, STRANGER_BYTES)

    def listen(self, connection: socket.socket, most: int = MOST_BYTES) -> Lines:
        """most: bytes of a line."""
        lines = Lines(connection.fileno(), most)
        self.selector.register(connection, selectors.EVENT_READ, lambda: self.hear(connection, lines))
        return lines

    def hear(self, connection: socket.socket, lines: Lines) -> None:
        heard = lines.read()
        try:
            for line in heard or []:
                self.hear_line(connection, *line.split(" "))
        except ValueError:  # nothing that engine says
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
        """Raises ValueError where somebody does not know the token, or does not say who they are."""
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
        """Somebody who has heard the welcome, once: who has waited too long for it hangs up, and comes again. Raises
        ValueError where they say anything else."""
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
        """Those who have had their time, but not what has come while this process could not read."""
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
        # The kernel ends the largest process where memory runs out, and nobody but its log says so.
        how = "died, killed or crashed (dmesg tells whether for want of memory)"
        if self.outlives:
            say(f"engine: {rank} {how}: the others go on without it\n")
            return
        # Before all have come, the first to die may be one that has not: the launcher tells.
        if self.joined >= self.expected and not self.told:
            safe = f"; {self.safe()}" if self.safe() else ""
            say(f"engine: {rank} {how}: stopping all ranks{safe}\n")
        self.end(0)

    def safe(self) -> str:
        """What a run that is stopped leaves."""
        if self.complete:
            return "the run was complete, all its files are written"
        return f"the last snapshot is {self.saved}" if self.saved else ""

    def judge(self) -> None:
        """Everybody who can has said where they are."""
        self.asked_at = None
        silent = [name for name in self.ranks.values() if name not in self.answers]
        answers = list(self.answers.values())  # also of ranks that hang after their farewell
        # All, or all whose turn to go on has not come yet; the others have just gone on. Not the last that is left.
        suspended = len(answers) >= self.expected and all(
            answer.state == "T" or answer.idle < self.seconds / 2 for answer in answers
        )
        # Who waits may do so for long; it is for those who do not that the others wait.
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
        """Whether something is to be done soon."""
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
    """Whether there is something to read, or an end."""
    looks = select.poll()  # select() takes no descriptor above 1023
    looks.register(connection, select.POLLIN)
    return bool(looks.poll(0))


def say(text: str) -> None:
    """To stderr, as far as that takes it: who ends a run does not wait for those who do not read why."""
    rest = printable(text, lines=True).encode()
    with contextlib.suppress(OSError):
        while rest and _takes(2, SAY_SECONDS):
            rest = rest[os.write(2, rest[:SAY_BYTES]) :]


def _takes(descriptor: int, seconds: float = 0) -> bool:
    """Whether a descriptor takes SAY_BYTES without waiting, within so many seconds."""
    looks = select.poll()
    looks.register(descriptor, select.POLLOUT)
    return bool(looks.poll(1000 * seconds))
