"""The sentinel of one rank: `sentinel_process.py RANK PID`, run by path with nothing but the standard library.

Every rank holds a TCP connection to rank 0's sentinel, the hub. When a connection ends without a farewell its rank has
died: the hub says so, once, and has every sentinel kill its own rank. One process sees all the ends in the order in
which the kernel closes the connections; sentinels that each watched their own rank would be overtaken by a launcher
that kills the others at once.

    sentinel 0 -> rank 0    TOKEN HOST:PORT ...                  where the hub listens, for all ranks
    rank -> its sentinel    TOKEN HOST:PORT ...                  end of file: the rank has ended
    rank -> hub             rank TOKEN RANK PID HOST             answer: welcome
                            fail                                 answer: first, or late if another has failed before
                            bye
    sentinel -> hub         guard TOKEN                          answer: welcome; later perhaps: stop
"""

import contextlib
import fcntl
import os
import resource
import secrets
import selectors
import signal
import socket
import struct
import sys
import time

CONNECT_SECONDS = 2.0
LINGER_SECONDS = 5.0  # for ranks that an abort does not reach, and for a hub whose rank has ended
SIOCGIFADDR = 0x8915
WELCOME = b"welcome\n"


def connect(addresses: list[str], hello: str) -> socket.socket | None:
    """The first of the addresses that answers, or None. Hosts may own the same private address: hence `hello`."""
    for address in addresses:
        host, _, port = address.rpartition(":")
        with contextlib.suppress(OSError):
            connection = socket.create_connection((host, int(port)), CONNECT_SECONDS)
            connection.sendall(hello.encode() + b"\n")
            if connection.recv(len(WELCOME)) == WELCOME:
                connection.settimeout(None)
                return connection
            connection.close()
    return None


def own_addresses(port: int) -> list[str]:
    """Every IPv4 address of this host: that of its name first, loopback last; the others try them in this order."""
    found, named = [], []
    with contextlib.suppress(OSError):
        named = socket.gethostbyname_ex(socket.gethostname())[2]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                request = struct.pack("256s", name.encode()[:15])
                found.append(socket.inet_ntoa(fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)[20:24]))
    found.sort(key=lambda address: (address.startswith("127."), address not in named))
    return [f"{address}:{port}" for address in found]


class Lines:
    """Whole lines from a descriptor, as they come."""

    def __init__(self, fd: int):
        self.fd, self._rest = fd, b""

    def read(self) -> list[str] | None:
        """The lines that are complete; None at the end of file."""
        try:
            data = os.read(self.fd, 4096)
        except OSError:  # a reset is an end too
            data = b""
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.decode(errors="replace") for line in lines]


class Hub:
    """Rank 0's sentinel knows which failure was the first."""

    def __init__(self, selector: selectors.BaseSelector):
        self.selector = selector
        self.token = secrets.token_hex(16)
        self.listener = socket.create_server(("", 0), backlog=4096)
        self.ranks: dict[socket.socket, str] = {}  # connection -> "rank 3 (pid 77 on host)"
        self.guards: set[socket.socket] = set()
        self.ended = False  # somebody has failed or died
        self.stop_at: float | None = None
        selector.register(self.listener, selectors.EVENT_READ, self.accept)

    def accept(self) -> None:
        connection, _ = self.listener.accept()
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
            elif word == "fail" and connection in self.ranks:
                self.send(connection, "late" if self.ended else "first")
                self.end(LINGER_SECONDS)
            elif word == "bye":
                self.ranks.pop(connection, None)

    def enrol(self, connection: socket.socket, word: str, rest: list[str]) -> None:
        if word == "guard":
            self.guards.add(connection)
        else:
            self.ranks[connection] = "rank {} (pid {} on {})".format(*rest)
        self.send(connection, "welcome")

    def died(self, rank: str) -> None:
        line = f"engine: {rank} died, killed or crashed: stopping all ranks\n"
        with contextlib.suppress(OSError):
            os.write(2, line.encode())
        self.end(0)

    def end(self, seconds: float) -> None:
        if not self.ended:
            self.ended = True
            self.stop_at = time.monotonic() + seconds

    def stop_all(self) -> None:
        self.stop_at = None
        for guard in self.guards:
            self.send(guard, "stop")

    def drop(self, connection: socket.socket) -> None:
        self.selector.unregister(connection)
        self.ranks.pop(connection, None)
        self.guards.discard(connection)
        connection.close()

    def send(self, connection: socket.socket, line: str) -> None:
        with contextlib.suppress(OSError):
            connection.sendall(line.encode() + b"\n")


class Guard:
    """The part that every sentinel has: ends with its rank, and kills it when the hub says so."""

    def __init__(self, selector: selectors.BaseSelector, pid: int, hub: Hub | None):
        self.selector, self.pid, self.hub = selector, pid, hub
        self.gone_at: float | None = None  # when the rank ended, well or not
        self.connection: socket.socket | None = None
        lines = Lines(0)
        selector.register(0, selectors.EVENT_READ, lambda: self.hear_rank(lines))

    def hear_rank(self, lines: Lines) -> None:
        heard = lines.read()
        for line in heard or []:
            token, *addresses = line.split(" ")
            self.connection = self.join(token, addresses)
        if heard is None:
            self.leave()

    def join(self, token: str, addresses: list[str]) -> socket.socket | None:
        if self.hub:  # in this very thread: a socket pair takes the place of a connection
            ours, theirs = socket.socketpair()
            self.hub.guards.add(theirs)
            self.selector.register(theirs, selectors.EVENT_READ, lambda: self.hub.drop(theirs))
        else:
            ours = connect(addresses, f"guard {token}")
        if ours:
            self.selector.register(ours, selectors.EVENT_READ, self.hear_hub)
        return ours

    def hear_hub(self) -> None:
        word = self.connection.recv(16)
        if word == b"stop\n":
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
            self.leave()
        elif not word:  # the hub is gone: go on without
            self.hang_up()

    def leave(self) -> None:
        self.gone_at = time.monotonic()
        self.selector.unregister(0)
        self.hang_up()

    def hang_up(self) -> None:
        if self.connection:
            self.selector.unregister(self.connection)
            self.connection.close()
            self.connection = None


def run(selector: selectors.BaseSelector, guard: Guard, hub: Hub | None) -> None:
    """Until the rank has ended; a hub also waits a little for the others to hang up, and to say what it has to say."""
    while True:
        now = time.monotonic()
        if hub and hub.stop_at is not None and hub.stop_at <= now:
            hub.stop_all()
        if guard.gone_at is not None:
            waited_for = hub and (hub.ranks or hub.guards) and now - guard.gone_at < LINGER_SECONDS
            if not waited_for:
                return
        timed = guard.gone_at is not None or (hub and hub.stop_at is not None)
        for key, _ in selector.select(0.05 if timed else None):
            # A connection that an earlier event of this round has closed is no longer registered.
            if selector.get_map().get(key.fd) is key:
                key.data()


def main(rank: int, pid: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # meant for the rank, which may want to end in order
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # two connections for each rank
    selector = selectors.DefaultSelector()
    hub = Hub(selector) if rank == 0 else None
    if hub:
        address = f"{hub.token} {' '.join(map(str, own_addresses(hub.listener.getsockname()[1])))}\n"
        try:
            os.write(1, address.encode())
        except BrokenPipeError:
            return  # the rank has ended before MPI was there, and has said why
    run(selector, Guard(selector, pid, hub), hub)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
