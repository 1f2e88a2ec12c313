"""The sentinels' hub accepts the ranks, and soon drops everybody else."""

import contextlib
import fcntl
import os
import resource
import selectors
import socket
import subprocess
import sys
import threading
import time

import pytest

from engine.watchdog import hub as hubs
from engine.watchdog.board import Board
from engine.watchdog.guard import Guard, Watch
from engine.watchdog.hub import Hub
from engine.watchdog.sentinel import Sentinel
from engine.watchdog.wire import WELCOME, Lines, addresses_for, connect, network
from tests.mpi import REPO, run_ranks


class Running:
    """Runs a hub in a thread, as rank 0's sentinel does in a process."""

    def __init__(self):
        self.selector = selectors.DefaultSelector()
        self.hub = Hub(self.selector)
        (self.address,) = self.hub.open(addresses_for("host"))
        self.goes_on, self.thread = True, threading.Thread(target=self.run)

    def run(self) -> None:
        while self.goes_on:
            self.hub.tick(time.monotonic())
            for key, _ in self.selector.select(0.02):
                if self.selector.get_map().get(key.fd) is key:
                    key.data()

    def connect(self) -> socket.socket:
        host, port = self.address.split(":")
        connection = socket.create_connection((host, int(port)), 5)
        connection.settimeout(10)
        return connection

    def enrol(self, rank: int = 0, kind: str = "rank") -> socket.socket | None:
        """Connects as a rank's sentinel or as a guard; returns the connection, None if it is refused."""
        who = f" {rank} 77 there" if kind == "rank" else ""
        return connect([self.address], f"{kind} {self.hub.token}{who}")

    def end(self) -> None:
        self.goes_on = False
        self.thread.join()
        self.hub.close()


@pytest.fixture
def asleep():
    """Yields a hub that does not listen until the test starts its thread."""
    running = Running()
    yield running
    running.end()


@pytest.fixture
def running(asleep):
    """Returns a hub that runs."""
    asleep.thread.start()
    return asleep


def is_hung_up(connection: socket.socket) -> bool:
    try:
        return connection.recv(16) == b""
    except ConnectionError:
        return True


def test_it_listens_on_loopback_where_the_ranks_share_a_network(running):
    assert running.address.startswith("127.0.0.1:")
    assert running.enrol() is not None


def test_the_address_for_several_hosts_is_asked_for(monkeypatch):
    monkeypatch.setenv("ENGINE_WATCHDOG_INTERFACE", "lo")
    assert addresses_for("network") == ["127.0.0.1"]
    monkeypatch.delenv("ENGINE_WATCHDOG_INTERFACE")
    assert not any(address.startswith("127.") for address in addresses_for("network"))
    assert network() == network()


def test_nobody_is_waited_for_longer_than_two_seconds(running):
    begin = time.monotonic()
    silent, slow = running.connect(), running.connect()
    slow.sendall(b"rank ")
    assert is_hung_up(silent) and is_hung_up(slow)
    assert 1.5 < time.monotonic() - begin < 8
    assert running.enrol() is not None


@pytest.mark.parametrize(
    "text", [b"x" * 300, b"rank 0123 0 77 there\n", b"rank\n", b"fail\n", b"\xff\0\n", b"guard \xc3\xa9\n", b"\n"]
)
def test_without_the_token_a_connection_ends_at_once(running, text):
    begin = time.monotonic()
    connection = running.connect()
    connection.sendall(text)
    assert is_hung_up(connection) and time.monotonic() - begin < 1.5
    assert running.enrol() is not None and not running.hub.ended


def test_the_token_alone_is_no_rank(running):
    connection = running.connect()
    connection.sendall(f"rank {running.hub.token}\n".encode())
    assert is_hung_up(connection)


def test_a_guard_that_talks_nonsense_is_dropped(running):
    for line in (b"stuck soon\n", b"at 1 2 3\n", b"at a b c d e f g\n", b"x" * 70_000):
        guard = running.enrol(kind="guard")
        guard.settimeout(10)
        guard.sendall(line)
        assert is_hung_up(guard)
    assert running.enrol() is not None


def test_it_stops_listening_when_all_have_come(running):
    running.hub.expected = 1
    rank, guard = running.enrol(), running.enrol(kind="guard")
    deadline = time.monotonic() + 5
    while running.hub.listeners and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(OSError):
        running.connect()
    rank.sendall(b"fail\n")
    assert rank.recv(16) == b"first\n" and guard is not None


def test_a_flood_of_strangers_does_not_keep_the_ranks_out(running, monkeypatch):
    monkeypatch.setattr(hubs, "MOST_STRANGERS", 20)
    crowd = [running.connect() for _ in range(100)]
    assert running.enrol() is not None
    assert len(running.hub.strangers) <= 20
    for connection in crowd:
        connection.close()


def test_a_stranger_may_have_a_descriptor_beyond_the_thousandth():
    """select() would take no descriptor above 1023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard <= 1024:
        pytest.skip("processes may have no more than 1024 descriptors here")
    hub = Hub(selectors.DefaultSelector())
    ours, theirs = socket.socketpair()
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    hub.admit(socket.socket(fileno=fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, 1024)))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    ours.sendall(f"rank {hub.token} 0 77 there\nhere\n".encode())
    hub.drop_strangers(time.monotonic() + hubs.STRANGER_SECONDS)
    assert list(hub.ranks.values()) == ["rank 0 (pid 77 on there)"] and not hub.strangers


@pytest.mark.parametrize("seconds", [0, 0.1])
def test_a_connection_that_was_given_up_is_neither_a_rank_nor_a_death(asleep, seconds, monkeypatch, capfd):
    """On a busy host, the hub may read a rank's first hello before or after the rank has tried again."""
    hub = asleep.hub
    hub.expected = 2
    with monkeypatch.context() as impatient:
        impatient.setattr("engine.watchdog.wire.CONNECT_SECONDS", 0.1)
        assert asleep.enrol(3) is None and asleep.enrol(kind="guard") is None
    threading.Timer(seconds, asleep.thread.start).start()
    if not seconds:
        time.sleep(0.2)
    dies, guard = asleep.enrol(3), asleep.enrol(kind="guard")
    other, another = asleep.enrol(1), asleep.enrol(kind="guard")
    assert dies and guard and other and another and not hub.ended and capfd.readouterr().err == ""
    dies.close()
    for each in (guard, another):
        each.settimeout(10)
        assert each.recv(16) == b"stop\n"
    told = capfd.readouterr().err
    assert hub.joined == 2 and told.startswith("engine: rank 3 (pid 77 on there) died") and told.count("\n") == 1
    other.close()


LIMITED = """
import resource, selectors, sys, time
from engine.watchdog.hub import Hub
selector = selectors.DefaultSelector()
hub = Hub(selector)
print(hub.token, *hub.open(["127.0.0.1"]), flush=True)
resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
while True:
    hub.tick(time.monotonic())
    for key, _ in selector.select(0.05):
        if selector.get_map().get(key.fd) is key:
            key.data()
"""


def test_it_lives_on_without_free_descriptors():
    with subprocess.Popen([sys.executable, "-c", LIMITED], cwd=REPO, stdout=subprocess.PIPE, text=True) as process:
        token, address = process.stdout.readline().split()
        host, _, port = address.rpartition(":")
        crowd = [socket.create_connection((host, int(port)), 5) for _ in range(60)]
        time.sleep(0.5)
        assert process.poll() is None
        for connection in crowd:
            connection.close()
        found = connect([address], f"rank {token} 0 77 there")
        assert found is not None
        process.kill()


def test_lines_are_put_together_and_no_longer_than_allowed():
    ours, theirs = socket.socketpair()
    lines = Lines(ours.fileno(), 1000)
    for piece, expected in ((b"a", []), (b"b\nc d\n", ["ab", "c d"]), (b"e", []), (b"\n", ["e"]), (b"x" * 1001, None)):
        theirs.sendall(piece)
        assert lines.read() == expected


@pytest.mark.mpi
def test_after_the_start_nobody_can_connect():
    program = """
import os, time
from pathlib import Path
from engine.comm.world import world
w = world()
w.barrier()
def listening():
    inodes = {os.readlink(entry) for entry in Path(f"/proc/{w._sentinel._process.pid}/fd").iterdir()}
    lines = [line.split() for line in open("/proc/net/tcp")]
    return sum(f"socket:[{line[9]}]" in inodes for line in lines if line[3] == "0A")
if w.rank == 0:
    deadline = time.monotonic() + 10
    while listening() and time.monotonic() < deadline:  # it hears a moment later that all have come
        time.sleep(0.05)
    print(listening(), w._sentinel._connection.getpeername()[0])
w.barrier()
w.close()
"""
    done = run_ranks(2, program)
    assert done.stdout.split() == ["0", "127.0.0.1"], done.stdout + done.stderr


def test_deaths_of_which_the_reason_has_been_told_are_no_news(running, capfd):
    """The hub stops the guards, and says no more than has been said."""
    running.hub.expected, running.hub.told = 1, True
    dies, guard = running.enrol(0), running.enrol(kind="guard")
    assert dies and guard
    dies.close()
    guard.settimeout(10)
    assert guard.recv(16) == b"stop\n" and capfd.readouterr().err == ""
    guard.close()


@pytest.fixture
def late(monkeypatch):
    """Returns the address of a hub that refuses the first connection and accepts the next."""
    listener, refused, call = socket.socket(), threading.Event(), socket.create_connection
    listener.settimeout(10)  # a test that fails to connect must not wait for ever
    listener.bind(("127.0.0.1", 0))

    def told_of(*arguments) -> socket.socket:
        try:
            return call(*arguments)
        except OSError:
            refused.set()
            raise

    monkeypatch.setattr(socket, "create_connection", told_of)

    def listen() -> None:
        refused.wait(10)
        listener.listen()
        connection, _ = listener.accept()
        assert connection.recv(100)
        connection.sendall(WELCOME)
        while connection.recv(100):  # until the sentinel hangs up
            pass
        connection.close()

    thread = threading.Thread(target=listen)
    thread.start()
    yield "{}:{}".format(*listener.getsockname())
    thread.join()
    listener.close()


def sentinel_of(rank: int) -> Sentinel:
    """Returns a sentinel that has no process of its own."""
    sentinel = Sentinel.__new__(Sentinel)
    sentinel._rank, sentinel._tell = rank, lambda line: True
    return sentinel


def test_a_rank_that_is_refused_tries_again_and_says_so_once(late, capfd):
    sentinel = sentinel_of(3)
    sentinel.join(f"token {late}", 4)
    assert sentinel._connection
    sentinel._connection.close()
    told = capfd.readouterr().err
    assert told.startswith(f"engine: rank 3 tries to reach rank 0's sentinel at {late} for 20 s")
    assert told.count("\n") == 1


def test_a_rank_that_is_refused_for_long_goes_on_without(monkeypatch, capfd):
    monkeypatch.setattr("engine.watchdog.sentinel.JOIN_SECONDS", 0.3)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        sentinel = sentinel_of(3)
        sentinel.join("token {}:{}".format(*nobody.getsockname()), 4)
    assert sentinel._connection is None and capfd.readouterr().err.count("\n") == 1
    sentinel.join("", 4)  # rank 0's sentinel is gone
    assert sentinel._connection is None and capfd.readouterr().err == ""


def test_a_guard_that_is_refused_tries_again_and_watches_meanwhile(late):
    """Meanwhile it has to watch its own rank."""
    guard = Guard(selectors.SelectSelector(), 3, Watch(Board(), os.getpid(), 0), None)
    guard.join("token", [late])
    assert guard.connection is None and guard.interval
    deadline = time.monotonic() + 10
    while guard.connection is None and time.monotonic() < deadline:
        time.sleep(guard.interval or 0)
        guard.tick(time.monotonic())
    assert guard.connection and guard.interval is None
    guard.hang_up()


@pytest.mark.parametrize("outlives, word", [(False, "stop"), (True, None)])
def test_the_others_are_stopped_when_a_rank_dies_unless_they_outlive_it(running, outlives, word, capfd):
    running.hub.expected, running.hub.outlives = 2, outlives
    stays, dies, guard = running.enrol(0), running.enrol(1), running.enrol(kind="guard")
    assert stays and dies and guard
    dies.close()
    guard.settimeout(10 if word else 1)
    try:
        heard = guard.recv(16).decode().strip()
    except TimeoutError:
        heard = None
    assert heard == word
    end = "the others go on without it" if outlives else "stopping all ranks"
    how = "died, killed or crashed (dmesg tells whether for want of memory)"
    assert f"engine: rank 1 (pid 77 on there) {how}: {end}" in capfd.readouterr().err
    stays.close()
    guard.close()


@contextlib.contextmanager
def stuck_stderr():
    """Replaces stderr by a full pipe that nobody reads."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write, bytes(4096))
    os.set_blocking(write, True)
    before = os.dup(2)
    os.dup2(write, 2)
    try:
        yield
    finally:
        os.close(read)
        os.dup2(before, 2)
        os.close(write)
        os.close(before)


def test_ranks_are_stopped_though_nobody_reads_why(running):
    running.hub.expected = 1
    dies, guard = running.enrol(), running.enrol(kind="guard")
    assert dies and guard
    guard.settimeout(5.0)
    with stuck_stderr():
        dies.close()
        assert guard.recv(16) == b"stop\n"
    guard.close()


def test_a_long_message_is_whole_where_it_is_read(capfd):
    hubs.say("x" * 100_000)
    assert capfd.readouterr().err == "x" * 100_000
