"""What every sentinel does for its own rank: notices when it hangs, kills it when the hub says so, and ends with it."""

import contextlib
import os
import resource
import selectors
import signal
import socket
import time

from engine.errors import printable, shortened
from engine.watchdog.board import SLOW_FACTOR, Board
from engine.watchdog.hub import LINGER_SECONDS, Hub, say
from engine.watchdog.leftovers import Leftovers
from engine.watchdog.process import catches, has_ended, identity, state_of
from engine.watchdog.report import rank_name
from engine.watchdog.shared_memory import SharedMemory
from engine.watchdog.wire import JOIN_PAUSE, JOIN_SECONDS, Lines, addresses_for, connect, send

SOON = 0.05  # seconds between two looks while something is about to happen
SUPERVISOR_INTERVAL = 1.0
HUB_SECONDS = 15.0  # within which the hub must answer that a rank hangs
# Before the sentinels have joined, all of them notice the same failure and cannot agree on who prints it. Rank 0's does
# first, which ends the others; each other one waits so long, in case that rank 0 has no sentinel yet.
LATER_SECONDS, LATEST_SECONDS = 5.0, 15.0


class Watch:
    """Measures how long a rank has made no progress."""

    def __init__(self, board: Board, pid: int, limit: float):
        """limit: seconds without progress after which the rank counts as stuck; 0: it never does."""
        self.board, self.pid = board, pid
        self.since = self.looked = time.monotonic()  # when there was progress last; when look() was called last
        self.stopped_since: float | None = None
        self.state, self.beats = "", board.beats()
        self.set_limit(limit)

    def set_limit(self, seconds: float) -> None:
        self.limit = seconds
        self.interval = min(1.0, max(SOON, seconds / 5)) if seconds else None

    def look(self, now: float) -> None:
        """Reads the board and the state of the process. Time in a user's own code does not count as without progress,
        nor does the time before a process that was stopped goes on."""
        if now - self.looked > 5.0:  # this process has not run either: the whole host was suspended
            self.since = now
        self.looked, before, self.state = now, self.state, state_of(self.pid)
        beats = self.board.beats()
        if beats != self.beats or (self.state != "T" and (before == "T" or self.board.is_away())):
            self.beats, self.since = beats, now
        if self.state != "T":
            self.stopped_since = None
        elif self.stopped_since is None:
            self.stopped_since = now

    def idle(self, now: float) -> float:
        """Returns the seconds without progress, as of the last look()."""
        return now - self.since

    def is_stuck(self, now: float) -> bool:
        """Returns whether the rank has made no progress for too long. One that a debugger has stopped ("t") is not
        stuck."""
        if not self.limit or self.state == "t":
            return False
        if self.stopped_since is not None and now - self.stopped_since >= self.limit:
            return True
        return self.idle(now) >= self.limit * (SLOW_FACTOR if self.board.is_slow() else 1)


class Guard:
    """Hears the rank and the hub, and acts for both: run() calls tick() at intervals, and a hear_ method per
    message."""

    def __init__(self, selector: selectors.BaseSelector, rank: int, watch: Watch, hub: Hub | None):
        self.selector, self.rank, self.watch, self.hub = selector, rank, watch, hub
        self.later = min(LATER_SECONDS + rank - 1, LATEST_SECONDS) if rank else 0.0
        self.shared_memory = SharedMemory(watch.pid)
        self.leftovers = Leftovers()
        self.gone_at: float | None = None  # when the rank ended, well or not
        self.connection: socket.socket | None = None
        self.joined = False
        # While the hub is being called: until when, the line to send, and the hub's addresses.
        self.calls: tuple[float, str, list[str]] | None = None
        self.told_at: float | None = None  # when the hub was told that the rank hangs
        self.answered = True  # the hub has answered that
        self.children: list[str] = []  # identity() of each process that the rank has forked
        self.supervisor = os.environ.get("ENGINE_SUPERVISOR", "")
        self.told_of_supervisor = False
        lines = Lines(0)
        selector.register(0, selectors.EVENT_READ, lambda: self.hear_rank(lines))

    def hear_rank(self, lines: Lines) -> None:
        heard = lines.read()
        for line in heard or []:
            word, *rest = line.split(" ")
            if word == "listen" and self.hub:
                self.tell_address(rest[0])
            elif word == "hub":
                self.join(rest[0], rest[1:])
            elif word == "ranks" and self.hub:
                self.hub.expected = int(rest[0])
            elif word == "saved" and self.hub:
                self.hub.saved = " ".join(rest)
            elif word == "outlive" and self.hub:
                self.hub.outlives = rest[0] == "1"
            elif word == "watch":
                self.watch.set_limit(float(rest[0]))
            elif word == "leaves":
                self.leftovers.note(" ".join(rest))
            elif word == "keeps":
                self.leftovers.forget(" ".join(rest))
            elif word == "child":
                self.children = [child for child in self.children if not has_ended(child)] + [identity(int(rest[0]))]
            elif word == "bye":
                self.children.clear()
                self.shared_memory.forget()
        if heard is None:
            self.leave()

    def tell_address(self, reach: str) -> None:
        """Opens the hub; see wire.addresses_for()."""
        if self.hub is None:
            return
        words = [self.hub.token, *self.hub.open(addresses_for(reach))]
        with contextlib.suppress(BrokenPipeError):  # the rank has ended meanwhile, and has said why
            os.write(1, f"{' '.join(words)}\n".encode())

    def join(self, token: str, addresses: list[str]) -> None:
        """Begins to connect this sentinel to the hub."""
        if self.hub:  # it runs in this very thread: a socket pair takes the place of a connection
            connection, theirs = socket.socketpair()
            self.hub.guards.add(theirs)
            self.hub.listen(theirs)
            self.attend(connection)
        elif addresses:
            self.calls = time.monotonic() + JOIN_SECONDS, f"guard {token}", addresses
            self.call()
        self.joined = True
        self.shared_memory.note()

    def call(self) -> None:
        """Tries once to reach the hub, until JOIN_SECONDS are over."""
        if self.calls:
            until, hello, addresses = self.calls
            connection = connect(addresses, hello)
            if connection or time.monotonic() >= until:
                self.calls = None
            if connection:
                self.attend(connection)

    def attend(self, connection: socket.socket) -> None:
        """Keeps the connection to the hub, and hears what comes from it."""
        self.connection = connection
        lines = Lines(connection.fileno())
        self.selector.register(connection, selectors.EVENT_READ, lambda: self.hear_hub(lines))

    def hear_hub(self, lines: Lines) -> None:
        heard = lines.read()
        for word in heard or []:
            self.answered = True
            if word == "where" and self.connection:
                now, watch = time.monotonic(), self.watch
                watch.look(now)
                waits, text = int(watch.board.waits_for_others()), _shown(watch.board.text())
                place = f"{watch.pid} {socket.gethostname()} {watch.idle(now):.1f} {watch.state or '?'} {waits} {text}"
                send(self.connection, f"at {self.rank} {place}")
            elif word == "stop":
                self.kill()
                return
        if heard is None:  # the hub is gone: go on without
            self.hang_up()

    def tick(self, now: float) -> None:
        watch = self.watch
        if self.gone_at is not None:
            return
        if not self.joined:  # MPI may come up any moment
            self.shared_memory.note()
        self.call()
        if self.supervisor and has_ended(self.supervisor):
            self.stop_in_order()
        if not watch.limit:
            return
        watch.look(now)
        if not watch.is_stuck(now):
            self.told_at = None
        elif not self.joined:
            stopped = watch.stopped_since is not None
            if stopped or watch.idle(now) >= SLOW_FACTOR * watch.limit + self.later:
                what = "has been stopped by a signal (SIGSTOP)" if stopped else "waits for MPI: a rank has not come up"
                self.give_up(f"{what} for {watch.idle(now):.0f} s")
        elif self.connection is None:
            self.give_up(
                f"no progress for {watch.idle(now):.0f} s, and rank 0's sentinel is gone: {watch.board.text()}"
            )
        elif self.told_at is None or (self.answered and now - self.told_at >= watch.limit):
            self.told_at, self.answered = now, False
            send(self.connection, f"stuck {watch.limit:g}")
        elif not self.answered and now - self.told_at >= HUB_SECONDS:
            self.give_up(f"no progress for {watch.idle(now):.0f} s, and rank 0's host is silent: {watch.board.text()}")

    def stop_in_order(self) -> None:
        """Ends the run with a snapshot by SIGTERM to the rank: without its supervisor, nobody would restart it."""
        if self.hub and not self.told_of_supervisor:
            say("engine: the process that has started this run was killed: stopping it\n")
        self.told_of_supervisor = True
        if self.watch.board.is_ending():  # another rank's signal has stopped it already, or another stage follows
            return
        self.supervisor = ""
        if self.hub:
            self.hub.told = not catches(self.watch.pid, signal.SIGTERM)  # which then ends it at once
        with contextlib.suppress(OSError):
            os.kill(self.watch.pid, signal.SIGTERM)

    @property
    def interval(self) -> float | None:
        """Seconds between two looks; None: none is needed."""
        if self.calls:
            return JOIN_PAUSE
        return self.watch.interval or (SUPERVISOR_INTERVAL if self.supervisor else None)

    def give_up(self, reason: str) -> None:
        """Kills the rank without the hub, and prints why."""
        say(f"engine: {rank_name(self.rank, self.watch.pid, socket.gethostname())} {reason}: stopping it\n")
        self.kill()

    def kill(self) -> None:
        """Kills the rank, and leaves."""
        self.shared_memory.note()
        with contextlib.suppress(OSError):
            os.kill(self.watch.pid, signal.SIGKILL)
        self.leave()

    def leave(self) -> None:
        """Cleans up after the rank, which has ended."""
        if self.gone_at is None:
            self.gone_at = time.monotonic()
            self.shared_memory.remove()
            for child in self.children:
                if not has_ended(child):
                    with contextlib.suppress(OSError):
                        os.kill(int(child.split(" ")[1]), signal.SIGKILL)
            self.selector.unregister(0)
            self.hang_up()

    def hang_up(self) -> None:
        if self.connection:
            self.selector.unregister(self.connection)
            self.connection.close()
            self.connection = None


def _shown(text: str) -> str:
    """Returns text as one line for the hub: the names of layers may hold anything."""
    return shortened(printable(text))


def run(selector: selectors.BaseSelector, guard: Guard, hub: Hub | None) -> None:
    """Runs the sentinel until its rank has ended. A hub goes on for up to LINGER_SECONDS, until the other ranks and
    sentinels have hung up, to print how they end."""
    while True:
        now = time.monotonic()
        if hub:
            hub.tick(now)
        guard.tick(now)
        if guard.gone_at is not None:
            waited_for = hub and (hub.ranks or hub.guards) and now - guard.gone_at < LINGER_SECONDS
            if not waited_for:
                return
        hurries = not guard.joined or guard.gone_at is not None or (hub and hub.hurries)
        for key, _ in selector.select(SOON if hurries else guard.interval):
            # A connection that an earlier event of this round has closed is no longer registered.
            if selector.get_map().get(key.fd) is key:
                key.data()


def main(rank: int, pid: int, board: int, seconds: float) -> None:
    """Runs the sentinel of a rank.

    Args:
        rank, pid: the rank's number and process.
        board: the descriptor of its Board.
        seconds: the limit without progress, until the rank sends `watch`.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # these are for the rank, which may want to end in order
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # a hub has two connections for each rank
    selector = selectors.DefaultSelector()
    watch = Watch(Board(board), pid, seconds)
    hub = Hub(selector) if rank == 0 else None
    guard = Guard(selector, rank, watch, hub)
    run(selector, guard, hub)
    guard.leftovers.remove()
