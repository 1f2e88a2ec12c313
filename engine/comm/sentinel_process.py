"""The sentinel of one rank: `sentinel_process.py RANK PID`, run by path with nothing but the standard library.

It holds a pipe from its rank (stdin). When the pipe ends without a farewell the rank has died, and rank 0's sentinel, the hub, which
all others reach over TCP, prints that once and has every sentinel kill its own rank. Lines of text everywhere:

    rank -> sentinel    join TOKEN HOST:PORT ...  |  fail  |  bye  |  end of file: died
    sentinel -> rank    TOKEN HOST:PORT ... (rank 0, at once)  |  first or late (answer to fail)
    sentinel -> hub     hello TOKEN  |  fail  |  died TIME RANK PID HOST
    hub -> sentinel     welcome  |  first  |  late  |  stop
"""

import contextlib
import fcntl
import os
import secrets
import selectors
import signal
import socket
import struct
import sys
import time

CONNECT_SECONDS = 1.0
SETTLE_SECONDS = 0.1  # the launcher kills the others at once: the earliest of the deaths reported in this time is the first
LINGER_SECONDS = 5.0  # for ranks that an abort does not reach, and for a hub whose rank has ended
SIOCGIFADDR = 0x8915


class Lines:
    """Whole lines from a descriptor, as they come."""

    def __init__(self, fd: int):
        self.fd, self._rest = fd, b""

    def read(self) -> list[str] | None:
        """The lines that are complete; None at the end of file."""
        try:
            data = os.read(self.fd, 4096)
        except OSError:
            data = b""
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.decode(errors="replace") for line in lines]


def send(connection: socket.socket, line: str) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(line.encode() + b"\n")


def own_addresses(port: int) -> list[str]:
    """Every IPv4 address of this host, loopback last, and its name: the others try them in this order."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                request = struct.pack("256s", name.encode()[:15])
                found.append(socket.inet_ntoa(fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)[20:24]))
    found.sort(key=lambda address: address.startswith("127."))
    return [f"{host}:{port}" for host in [*found, socket.gethostname()]]


class Hub:
    """Rank 0's sentinel decides which failure was the first."""

    def __init__(self, selector: selectors.BaseSelector):
        self.selector = selector
        self.token = secrets.token_hex(16)
        self.listener = socket.create_server(("", 0), backlog=4096)
        self.members: set[socket.socket] = set()
        self.deaths: list[tuple] = []  # (time, rank, pid, host), until SETTLE_SECONDS after the first
        self.ended = False  # somebody failed or died
        self.timers: list[tuple[float, object]] = []
        selector.register(self.listener, selectors.EVENT_READ, self.accept)

    def accept(self) -> None:
        connection, _ = self.listener.accept()
        lines = Lines(connection.fileno())
        self.selector.register(connection, selectors.EVENT_READ, lambda: self.hear(connection, lines))

    def hear(self, connection: socket.socket, lines: Lines) -> None:
        for line in (heard := lines.read()) or []:
            word, *rest = line.split(" ")
            if word == "hello" and rest == [self.token]:
                self.members.add(connection)
                send(connection, "welcome")
            elif connection in self.members and word == "fail":
                send(connection, "late" if self.ended else "first")
                self.end(LINGER_SECONDS)
            elif connection in self.members and word == "died" and len(rest) == 4:
                self.died(float(rest[0]), *rest[1:])
        if heard is None:
            self.selector.unregister(connection)
            self.members.discard(connection)
            connection.close()

    def died(self, when: float, rank: str, pid: str, host: str) -> None:
        if not self.deaths and not self.ended:
            self.timers.append((time.monotonic() + SETTLE_SECONDS, self.report))
            self.end(SETTLE_SECONDS)
        self.deaths.append((when, rank, pid, host))

    def report(self) -> None:
        # Clocks of different hosts do not compare: of those on the host that reported first, the earliest.
        _, rank, pid, host = min(death for death in self.deaths if death[3] == self.deaths[0][3])
        line = f"engine: rank {rank} (pid {pid} on {host}) died, killed or crashed: stopping all ranks\n"
        with contextlib.suppress(OSError):
            os.write(2, line.encode())

    def end(self, seconds: float) -> None:
        if not self.ended:
            self.ended = True
            self.timers.append((time.monotonic() + seconds, self.stop_all))

    def stop_all(self) -> None:
        for member in self.members:
            send(member, "stop")


class Guard:
    """The part that every sentinel has: watches its own rank."""

    def __init__(self, selector: selectors.BaseSelector, rank: int, pid: int):
        self.selector, self.rank, self.pid = selector, rank, pid
        self.connection: socket.socket | None = None
        self.gone_at: float | None = None  # when the rank ended, well or not
        self.failed = False
        lines = Lines(0)
        selector.register(0, selectors.EVENT_READ, lambda: self.hear_rank(lines))

    def hear_rank(self, lines: Lines) -> None:
        heard = lines.read()
        for line in heard or []:
            word, *rest = line.split(" ")
            if word == "join":
                self.join(rest[0], rest[1:])
            elif word == "fail":
                self.failed = True
                if self.connection:
                    send(self.connection, "fail")
                else:
                    self.answer("first")
            elif word == "bye":
                self.leave()
        if heard is None and self.gone_at is None:
            if self.connection and not self.failed:
                send(self.connection, f"died {time.monotonic():.6f} {self.rank} {self.pid} {socket.gethostname()}")
            self.leave()

    def join(self, token: str, addresses: list[str]) -> None:
        for address in addresses:
            host, _, port = address.rpartition(":")
            with contextlib.suppress(OSError):
                connection = socket.create_connection((host, int(port)), CONNECT_SECONDS)
                send(connection, f"hello {token}")
                # Another host may own the same private address, so the hub must answer. Rank 0's is in this very thread.
                if self.rank != 0 and connection.recv(64) != b"welcome\n":
                    connection.close()
                    continue
                connection.settimeout(None)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                lines = Lines(connection.fileno())
                self.connection = connection
                self.selector.register(connection, selectors.EVENT_READ, lambda: self.hear_hub(lines))
                return

    def hear_hub(self, lines: Lines) -> None:
        heard = lines.read()
        for word in heard or []:
            if word in ("first", "late"):
                self.answer(word)
            elif word == "stop" and self.gone_at is None:
                with contextlib.suppress(OSError):
                    os.kill(self.pid, signal.SIGKILL)
                self.leave()
        if heard is None and self.connection:  # the hub is gone: go on without
            self.hang_up()

    def answer(self, word: str) -> None:
        with contextlib.suppress(OSError):
            os.write(1, word.encode() + b"\n")

    def leave(self) -> None:
        if self.gone_at is None:
            self.gone_at = time.monotonic()
            self.selector.unregister(0)
            self.hang_up()

    def hang_up(self) -> None:
        if self.connection:
            self.selector.unregister(self.connection)
            self.connection.close()  # what was sent still arrives
            self.connection = None


def main(rank: int, pid: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # meant for the rank, which may want to end in order
    selector = selectors.DefaultSelector()
    hub = Hub(selector) if rank == 0 else None
    if hub:
        print(hub.token, *own_addresses(hub.listener.getsockname()[1]), flush=True)
    guard = Guard(selector, rank, pid)
    while True:
        now = time.monotonic()
        timers = hub.timers if hub else []
        for timer in [timer for timer in timers if timer[0] <= now]:
            timers.remove(timer)
            timer[1]()
        if guard.gone_at is not None and not (hub and _still_needed(hub, guard.gone_at, now)):
            return
        waiting = guard.gone_at is not None or timers
        for key, _ in selector.select(0.05 if waiting else None):
            key.data()


def _still_needed(hub: Hub, gone_at: float, now: float) -> bool:
    """A hub outlives its rank until the others have hung up, and until it has said what it has to say."""
    if now - gone_at > LINGER_SECONDS:
        return False
    return bool(hub.members) or any(action == hub.report for _, action in hub.timers)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
