"""Rank 0's sentinel knows which failure was the first, and asks where all ranks are when one makes no progress."""

import contextlib
import os
import secrets
import selectors
import socket
import time

from engine.watchdog.report import Answer, rank_name, report
from engine.watchdog.wire import Lines, send

LINGER_SECONDS = 5.0  # for ranks that an abort does not reach, and for a hub whose rank has ended
ANSWER_SECONDS = 2.0


class Hub:
    def __init__(self, selector: selectors.BaseSelector):
        self.selector = selector
        self.token = secrets.token_hex(16)
        self.listener = socket.create_server(("", 0), backlog=4096)
        self.ranks: dict[socket.socket, str] = {}  # connection -> "rank 3 (pid 77 on host)"
        self.expected, self.joined = 0, 0  # ranks
        self.guards: set[socket.socket] = set()
        self.saved = ""  # the last snapshot
        self.complete = False  # nobody has anything left to do but to end
        self.ended = False  # somebody has failed, died or made no progress
        self.stop_at: float | None = None
        self.asked_at: float | None = None  # where everybody is
        self.seconds = 0.0  # without progress, of the rank that was the reason to ask
        self.answers: dict[str, Answer] = {}
        selector.register(self.listener, selectors.EVENT_READ, self.accept)

    def accept(self) -> None:
        connection, _ = self.listener.accept()
        self.listen(connection)

    def listen(self, connection: socket.socket) -> None:
        lines = Lines(connection.fileno())
        self.selector.register(connection, selectors.EVENT_READ, lambda: self.hear(connection, lines))

    def hear(self, connection: socket.socket, lines: Lines) -> None:
        heard = lines.read()
        if heard is None:
            if connection in self.ranks and not self.ended:
                self.died(self.ranks[connection])
            self.drop(connection)
        for line in heard or []:
            word, *rest = line.split(" ")
            if word in ("rank", "guard") and rest[:1] == [self.token]:
                self.enrol(connection, word, rest[1:])
            elif connection in self.ranks:
                self.hear_rank(connection, word)
            elif connection in self.guards:
                self.hear_guard(connection, word, rest)

    def enrol(self, connection: socket.socket, word: str, rest: list[str]) -> None:
        if word == "guard":
            self.guards.add(connection)
        else:
            self.ranks[connection] = rank_name(*rest)
            self.joined += 1
        send(connection, "welcome")

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
        if self.joined >= self.expected:  # else the first to die may be one that has not come: the launcher tells
            safe = f"; {self.safe()}" if self.safe() else ""
            say(f"engine: {rank} died, killed or crashed: stopping all ranks{safe}\n")
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
        if suspended or self.ended:
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
        return self.stop_at is not None or self.asked_at is not None

    def drop(self, connection: socket.socket) -> None:
        self.selector.unregister(connection)
        self.ranks.pop(connection, None)
        self.guards.discard(connection)
        connection.close()


def say(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, text.encode())
