"""mode: ASYNC. Every rank updates its shares of the parameters for all ranks, and waits for others only to keep the
bound on staleness.

A rank's communication server has the rank's share of every chunk (shares.py): the weights, the optimizer's state, and
the sum of the gradients that have come. When backward has completed a bucket, the server sends each share of its
gradients to the rank that updates it, and gets weights back, bucket by bucket, while backward goes on. The next forward
waits for the weights of a layer just before it reads them. Which gradient goes into which update, and which ranks wait,
is decided in staleness.py.

A rank's server is one thread, which asks MPI now and then whether messages have come; the solver's thread calls it by
_call(). Before a test or a snapshot the ranks meet: they have computed as many gradients as whole updates need, every
server has made these updates, and all ranks get the same weights.
"""

from __future__ import annotations

import queue as queues
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet  # before Python 3.11 it is not the built-in one
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from engine.comm.shares import Share, bounds_of_shares
from engine.comm.staleness import Places, Tickets
from engine.comm.strategies.servers import take_seat
from engine.comm.strategies.strategy import CLOSING, Step, Strategy
from engine.errors import CommError, ConfigError
from engine.host.cores import helper_cores
from engine.watchdog.board import UPDATE

if TYPE_CHECKING:
    from engine.host._core import Updater

T = TypeVar("T")
ASK, GRANT, WITHDRAW = range(3)  # numbers of control messages
# The server's sleeps while there is nothing to do, in seconds: BUSY_SLEEP until BUSY_SECONDS after it last did
# something, then IDLE_SLEEP.
BUSY_SLEEP, IDLE_SLEEP, BUSY_SECONDS = 60e-6, 1e-3, 0.01
MOST_CHUNKS = 32767  # messages are numbered by chunks, and every MPI library knows numbers up to this


class Unit:
    """This rank's share of a chunk, with what is needed to update it.

    number: the chunk's. sums, masters: views of the share's summed gradients and weights. buffers: one for each other
    rank; it receives the rank's gradient, and then holds the weights that are sent back."""

    def __init__(self, number: int, bucket: int, share: Share, sums: np.ndarray, masters: np.ndarray, places: Places):
        self.number, self.bucket, self.share, self.places = number, bucket, share, places
        mine = slice(share.at, share.at + share.end - share.begin)
        self.sums, self.masters = sums[mine], masters[mine]
        self.buffers: dict[int, np.ndarray] = {}


class Asynchronous(Strategy):
    """See above. step_of(updater, iteration), which must be set before the first step, sets the updater's constants for
    an iteration and returns its Step. settled: the iteration of the last meeting."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        assert self.sharded and self.sharded.masters is not None and self.sharded.sums is not None
        self.step_of: Callable[[Updater, int], Step] | None = None
        self.rank = self.world.rank
        self.bound, self.corrects = self.settings.max_staleness or 0, self.settings.staleness_lr
        self._gradients, self._weights, self._control = (self.world.mailbox() for _ in range(3))
        self._make_units()
        self._open = False  # whether ranks are between two meetings
        self._first = self._own = 0  # the iteration of the last meeting; this rank's steps since then
        self._until: int | None = None  # the iteration of the next meeting, once tickets have told it
        self._steps = 0  # this rank's, in all
        self._tickets: Tickets | None = None  # on rank 0
        # What the solver's thread has asked the server to do, and where the results go.
        self._asked: queues.SimpleQueue[tuple[Callable[[Future], object], Future]] = queues.SimpleQueue()
        self._goal: tuple[int, Future] | None = None  # the version to which all units are to come, and who waits for it
        self._withdrawn = 0  # how many other ranks compute nothing more until the meeting is over
        self._next = 0  # the next bucket to push
        self._missing: dict[int, int] = {}  # bucket under way -> its messages that are not complete yet
        self._dirty: set[Unit] = set()  # units that may be able to go on
        self._seats = helper_cores()
        started: Future = Future()
        self.server = threading.Thread(target=self._run, args=(started,), name="comm-server-0", daemon=True)
        self.server.start()
        started.result()

    def _make_units(self) -> None:
        """Makes a unit for each chunk of which this rank has a share. Raises ConfigError for too many chunks."""
        sharded = self.sharded
        assert sharded and sharded.masters is not None and sharded.sums is not None
        self._chunks = [(bucket.index, chunk) for bucket in self.buckets for chunk in self.chunks(bucket)]
        if len(self._chunks) > MOST_CHUNKS:
            raise ConfigError(f"comm_param: chunk_mb: the net has {len(self._chunks)} chunks, at most {MOST_CHUNKS}")
        self.units: list[Unit] = []
        self._unit_of: dict[int, Unit] = {}
        for number, (bucket, chunk) in enumerate(self._chunks):
            share = sharded.shares.of_chunk(chunk.begin)
            if share.begin == share.end:
                continue
            unit = Unit(number, bucket, share, sharded.sums, sharded.masters, Places(self.ranks, self.bound))
            self.units.append(unit)
            self._unit_of[number] = unit
            for rank in range(self.ranks):
                if rank != self.rank:
                    unit.buffers[rank] = np.empty(share.end - share.begin, np.float32)

    # The solver's thread

    def open(self, iteration: int) -> None:
        """Collective. Begins, after `iteration` iterations, a time in which ranks do not wait for each other."""
        if self._open:
            return
        self._open, self._first, self._own, self._until = True, iteration, 0, None
        self._call(lambda done: done.set_result(self._begin(iteration)))
        self.world.barrier()

    def _begin(self, iteration: int) -> None:
        self._tickets, self._withdrawn = Tickets(self.ranks, self.bound, iteration), 0
        for unit in self.units:
            unit.places.begin(iteration)

    def next_iteration(self, iteration: int, until: int, stop: bool) -> int | None:
        """Returns the iteration as which this rank's next gradient counts; None when the ranks are to meet.

        iteration: of the last meeting. until: of the next one. stop: whether this rank wants to meet earlier."""
        self.open(iteration)
        granted, number = self._call(lambda done: self._ask(until, stop, done))
        if granted:
            return number
        self._until = number
        return None

    def start(self, step: Step) -> None:
        self.open(step.iteration)
        self.wait_all()
        self._own += 1
        self.queue.begin_step(self._steps)
        self._steps += 1

    def meets(self, iteration: int) -> bool:
        return False

    def settle(self) -> None:
        """Collective. Lets the ranks meet: sets `settled`, and gives all ranks the same weights."""
        self.wait_all()
        if not self._open:
            return
        self.settled = self._first + self._own if self._until is None else self._until
        self._call(lambda done: self._await(self.settled, done))
        self.world.barrier()
        self._open = False
        self._exchange()

    def _exchange(self) -> None:
        """Collective. Sends every rank's masters to all ranks."""
        sharded, channel = self.sharded, self.plain_channel
        assert sharded and sharded.masters is not None and channel
        for unit in self.units:
            sharded.weights[unit.share.begin : unit.share.end] = unit.masters
        for _, chunk in self._chunks:
            channel.all_gather(sharded.weights[chunk.begin : chunk.end])

    def report(self) -> str:
        """Collective. Returns a line about the staleness of all gradients since the last report, on rank 0; "" on other
        ranks."""
        mine: Counter[int] = Counter()
        for unit in self.units:
            mine += unit.places.staleness
            unit.places.staleness.clear()
        found = self.world.gather(mine)
        return describe_staleness(sum(found, Counter()), self.bound) if found else ""

    def _call(self, what: Callable[[Future[T]], object]) -> T:
        """Lets the server call what(done), and waits for the result, which `what` puts into `done`. Raises CommError if
        the server has ended."""
        done: Future[T] = Future()
        self._asked.put((what, done))
        with self.world.board.waiting():
            while True:
                try:
                    return done.result(timeout=0.2)
                except NotYet:
                    if self.queue.stopped:
                        self.queue.wait_all_done()  # raises the server's error
                        raise CommError("the communication server has ended") from None

    def wait_all(self) -> None:
        self.world.board.enter(UPDATE)
        self.queue.wait_all_done()

    def close(self) -> None:
        if not self.queue.stopped:
            self.settle()
        super().close()
        self.server.join(CLOSING)
        if self.server.is_alive():
            raise CommError(f"the communication server has not ended for {CLOSING:g} s: it waits for other ranks")
        for each in (self._gradients, self._weights, self._control, *filter(None, [self.plain_channel])):
            each.close()

    @property
    def server_count(self) -> int:
        return 1

    def describe(self) -> str:
        rates = ", rates divided by staleness" if self.corrects else ""
        what = f"asynchronous, staleness at most {self.bound}{rates}"
        return f"{self.ranks} ranks, {what}, 1 communication server each, {self.describe_buckets()}"

    # The server's thread

    def _run(self, started: Future) -> None:
        try:
            take_seat(self.settings, 0, self._seats)
        except ConfigError as error:
            started.set_exception(error)
            return
        started.set_result(None)
        from engine.host import _core

        _core.flush_denormals()
        try:
            self._listen()
            moved = time.perf_counter()
            while not self.queue.stopped:
                if self._turn():
                    self.world.board.server_beat()
                    moved = time.perf_counter()
                else:
                    time.sleep(BUSY_SLEEP if time.perf_counter() - moved < BUSY_SECONDS else IDLE_SLEEP)
        except Exception as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            self.queue.fail(f"communication server 0: {reason}")

    def _listen(self) -> None:
        """Posts the first receives for everything that other ranks may send."""
        for unit in self.units:
            for rank in unit.buffers:
                self._expect(unit, rank)
        for rank in range(self.ranks):
            if rank == self.rank:
                continue
            self._hear_withdrawal(rank)
            if self.rank == 0:
                self._hear_question(rank)

    def _turn(self) -> bool:
        """Does what there is to do. Returns whether there was anything."""
        moved = False
        while not self._asked.empty():
            what, done = self._asked.get()
            what(done)
            moved = True
        moved |= self._push()
        for mailbox in (self._weights, self._gradients, self._control):
            moved |= mailbox.poll()
        while self._dirty:
            self._serve(self._dirty.pop())
        # All ranks must have withdrawn, also if the updates are made: a late withdrawal would count for the next time.
        everybody = self._withdrawn == self.ranks - 1
        if self._goal and everybody and all(unit.places.version == self._goal[0] for unit in self.units):
            goal, self._goal = self._goal, None
            goal[1].set_result(None)
            moved = True
        return moved

    def _push(self) -> bool:
        """Sends the shares of the next bucket to their ranks, if backward has completed it. Returns whether it has."""
        if self._next == len(self.buckets) or not self.queue.wait_ready(self._next, 0.0):
            return False
        assert self.sharded
        bucket, self._next = self._next, self._next + 1
        shares = []
        for number, (of, chunk) in enumerate(self._chunks):
            if of == bucket:
                bounds = bounds_of_shares(chunk.end - chunk.begin, self.ranks)
                shares += [
                    (number, rank, chunk.begin + first, chunk.begin + last)
                    for rank, (first, last) in enumerate(bounds)
                    if first < last
                ]
        self._missing[bucket] = len(shares)
        for number, rank, begin, end in shares:
            if rank == self.rank:
                self._arrived(self._unit_of[number], rank)
                continue
            self._weights.receive(rank, number, self.sharded.weights[begin:end], lambda: self._got(bucket))
            self._missing[bucket] += 1  # the gradients must have been sent, too, before backward overwrites them
            self._gradients.send(rank, number, self.gradients[begin:end], lambda: self._got(bucket))
        self.queue.reduced(bucket)
        return True

    def _got(self, bucket: int) -> None:
        """Counts a message of a bucket that is complete. After the last one the bucket is done."""
        self._missing[bucket] -= 1
        if self._missing[bucket]:
            return
        del self._missing[bucket]
        if self._next == len(self.buckets) and not self._missing:
            self._next = 0  # before done(), after which the solver goes on
        self.queue.done(bucket)

    def _expect(self, unit: Unit, rank: int) -> None:
        """Posts the receive of another rank's next gradient of a unit."""
        self._gradients.receive(rank, unit.number, unit.buffers[rank], lambda: self._arrived(unit, rank))

    def _arrived(self, unit: Unit, rank: int) -> None:
        unit.places.push(rank)
        self._dirty.add(unit)

    def _serve(self, unit: Unit) -> None:
        """Adds the gradients that may have a place, updates when the sum is complete, and sends weights to the ranks
        that may have them."""
        places, share = unit.places, unit.share
        while True:
            first, found = places.is_empty, places.take()
            if found:
                rank, stale = found
                mine = rank == self.rank
                gradient = self.gradients[share.begin : share.end] if mine else unit.buffers[rank]
                self._add(unit.sums, gradient, 1 / max(1, stale) if self.corrects else 1.0, first)
                if places.is_full:
                    self._update(unit)
            while (rank := places.reply()) is not None:
                self._reply(unit, rank)
            if not found:
                return

    def _add(self, sums: np.ndarray, gradient: np.ndarray, factor: float, first: bool) -> None:
        if first:
            np.multiply(gradient, np.float32(factor), out=sums)
        elif factor == 1:
            sums += gradient
        else:
            sums += np.float32(factor) * gradient

    def _update(self, unit: Unit) -> None:
        assert self.step_of
        step = self.step_of(self.updater, unit.places.version)
        scale = 1.0 / (self.ranks * step.iter_size)
        self.updater.set_step(step.rate, scale, step.iteration, step.momentum_correction)
        share = unit.share
        self.updater.apply_range(unit.bucket, share.at, share.at + share.end - share.begin)
        unit.places.update()

    def _reply(self, unit: Unit, rank: int) -> None:
        """Sends a unit's weights to a rank, and expects its next gradient."""
        assert self.sharded
        if rank == self.rank:
            self.sharded.weights[unit.share.begin : unit.share.end] = unit.masters
            self._got(unit.bucket)
            return
        buffer = unit.buffers[rank]
        buffer[:] = unit.masters
        self._weights.send(rank, unit.number, buffer, lambda: self._expect(unit, rank))

    # Control messages: rank 0 gives out tickets

    def _ask(self, until: int, stop: bool, done: Future) -> None:
        """Asks rank 0 for a ticket. done: receives it, as Tickets.take() returns it."""
        if self.rank == 0:
            assert self._tickets
            done.set_result(self._tickets.take(0, until, stop))
            return
        answer = np.zeros(2, np.int64)
        self._control.receive(0, GRANT, answer, lambda: done.set_result((bool(answer[0]), int(answer[1]))))
        self._say(0, ASK, [until, int(stop)])

    def _hear_question(self, rank: int) -> None:
        """Posts the receive of a rank's next question, on rank 0, which answers it with a ticket."""
        question = np.zeros(2, np.int64)

        def answer() -> None:
            assert self._tickets
            granted, iteration = self._tickets.take(rank, int(question[0]), bool(question[1]))
            self._say(rank, GRANT, [int(granted), iteration])
            self._hear_question(rank)

        self._control.receive(rank, ASK, question, answer)

    def _hear_withdrawal(self, rank: int) -> None:
        """Posts the receive of a rank's next withdrawal."""
        values = np.zeros(2, np.int64)

        def withdraw() -> None:
            self._withdrawn += 1
            self._withdraw(rank)
            self._hear_withdrawal(rank)

        self._control.receive(rank, WITHDRAW, values, withdraw)

    def _withdraw(self, rank: int) -> None:
        for unit in self.units:
            unit.places.withdraw(rank)
            self._dirty.add(unit)

    def _say(self, rank: int, number: int, values: list[int]) -> None:
        message = np.array(values, np.int64)
        self._control.send(rank, number, message, lambda: None)

    def _await(self, iteration: int, done: Future) -> None:
        """Tells all ranks that this one computes nothing more. done: set when the others have said the same, and this
        rank's shares have had `iteration` updates."""
        self._withdraw(self.rank)
        for rank in range(self.ranks):
            if rank != self.rank:
                self._say(rank, WITHDRAW, [0, 0])
        self._goal = iteration, done


def describe_staleness(counts: Counter[int], bound: int) -> str:
    """Returns a histogram of staleness in one line; "" if there were no gradients."""
    total = sum(counts.values())
    if not total:
        return ""
    mean = sum(stale * count for stale, count in counts.items()) / total
    shares = ", ".join(f"{stale}: {100 * counts[stale] / total:.1f}%" for stale in sorted(counts))
    return f"Staleness of gradients, in updates: {shares}; mean {mean:.2f}, most allowed {bound}"
