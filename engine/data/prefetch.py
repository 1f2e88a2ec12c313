"""Prefetching: a ring of batch buffers, filled in order by decoding threads."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from engine.config.numbers import whole
from engine.data.reader import Reader, Sample, Shape
from engine.data.sampler import BatchShare
from engine.errors import ConfigError, DataError
from engine.files import reason
from engine.host.cores import cores_at_once, helper_cores, pin_thread
from engine.host.interrupts import undisturbed
from engine.host.memory import require_memory


@dataclass(frozen=True)
class Batch:
    """One batch, of one data layer or of all data layers of a net; valid until the next one is taken.

    first_sample: the number of its first sample among those of all ranks since the training began.
    size: the samples in it; fewer than the layer's batch_size at the end of an epoch, 0 for a net without data layers.
    keys: of those samples; with several layers, of the first.
    arrays: by data layer, the values of its tops: views of the ring's memory, C-contiguous float32.
    decoded: when decoding began and ended, in nanoseconds of time.monotonic_ns(); with several layers, of the first.
    """

    first_sample: int
    size: int
    keys: list[str] = field(default_factory=list)
    arrays: dict[str, tuple[np.ndarray, ...]] = field(default_factory=dict)
    decoded: tuple[int, int] | None = None


def data_threads() -> int:
    """Returns how many decoding threads a rank starts: ENGINE_DATA_THREADS, else one for each core that it may use, at
    most 4. Raises ConfigError."""
    text = os.environ.get("ENGINE_DATA_THREADS", "")
    if not text:
        return max(1, min(4, cores_at_once()))
    threads = whole(text, 1, MOST_THREADS)
    if threads is None:
        raise ConfigError(f"ENGINE_DATA_THREADS must be a whole number from 1 to {MOST_THREADS}; got {text!r}")
    return threads


def _aligned(shape: tuple[int, ...], alignment: int = 64) -> np.ndarray:
    """Returns an uninitialised float32 array, C-contiguous, that starts at a multiple of `alignment` bytes."""
    count = int(np.prod(shape))
    memory = np.empty(count * 4 + alignment, np.uint8)
    begin = -memory.ctypes.data % alignment
    return memory[begin : begin + count * 4].view(np.float32).reshape(shape)


class _Slot:
    """One buffer of the ring and the batch that is being decoded into it."""

    def __init__(self, batch_size: int, shapes: Sequence[Shape]):
        self.arrays = [_aligned((batch_size, *shape)) for shape in shapes]
        self.keys = [""] * batch_size
        self.share = BatchShare(0, [])
        self.pending = 0  # samples that no thread has finished yet
        self.error: tuple[int, BaseException] | None = None  # the place of the first bad sample, and its error
        self.begun = self.done = 0  # when decoding began and was over, nanoseconds of time.monotonic_ns()

    def begin(self, share: BatchShare) -> None:
        self.share, self.pending, self.error = share, len(share.samples), None
        self.begun = time.monotonic_ns()


MOST_THREADS = 1024
_CLOSE_SECONDS = 30.0  # for which the end of a run waits for data threads
_EXIT_SECONDS = 5.0  # for which a process waits for data threads when it exits
_open: weakref.WeakSet[Prefetcher] = weakref.WeakSet()


@atexit.register
def _stop_threads() -> None:
    """Ends all data threads: one that comes back from C++ when Python has ended would abort the process."""
    with undisturbed():
        end = time.monotonic() + _EXIT_SECONDS
        for prefetcher in list(_open):
            prefetcher.stop()
        for prefetcher in list(_open):
            prefetcher.join(end - time.monotonic())


def _forsake_all() -> None:
    for prefetcher in list(_open):
        prefetcher.forsake()


os.register_at_fork(after_in_child=_forsake_all)


class Prefetcher:
    """Iterates over the batches of a rank's shares. What a batch holds does not depend on the number of threads.

    An error in a thread is parked and raised by the next() whose batch it belongs to; the batches before it arrive.
    wait_seconds is the time that next() has spent waiting for data since the start. Call close(), or use `with`.
    """

    def __init__(
        self,
        reader: Reader,
        layer: str,
        shares: Iterator[BatchShare],
        batch_size: int,
        threads: int | None = None,
    ):
        """layer: the name of the data layer that reads. threads: None for data_threads()."""
        threads = threads or data_threads()
        self.wait_seconds = 0.0
        self._reader, self._layer = reader, layer
        self._shares = shares
        needed = reader.ring_bytes(batch_size)
        require_memory(needed, f"the ring of batches of layer '{layer}'", "lower batch_size and raise iter_size")
        self._slots = [_Slot(batch_size, reader.shapes) for _ in range(reader.ring)]
        # A thread takes a piece of a batch at a time: large enough that locking costs nothing for small images, small
        # enough that all threads work on one batch.
        self._piece = max(1, min(32, batch_size // (4 * threads)))
        if reader.pairs:
            self._piece += self._piece % 2
        self._changed = threading.Condition()
        self._begun = 0  # batches whose decoding has begun
        self._handed = 0  # samples of the newest of them that threads have taken
        self._taken = 0  # batches that next() has returned
        self._asked = 0  # batches that next() has been called for
        self._released = 0  # batches whose buffers may be filled again
        self._exhausted = False
        self._failed: BaseException | None = (
            None  # the error for which there are no more shares; None at the end of an epoch
        )
        self._closed = False
        self._cores = helper_cores()
        self._threads: list[threading.Thread] = []
        _open.add(self)
        for number in range(threads):
            thread = threading.Thread(target=self._work, name=f"data-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Prefetcher:
        return self

    def __next__(self) -> Batch:
        return self.next()

    def next(self) -> Batch:
        """Returns the next batch; the buffers of the one before are reused. Raises StopIteration at the end of an
        epoch(), DataError for a bad item."""
        self.release()
        begin = time.perf_counter()
        with self._changed:
            slot = self._slots[self._taken % len(self._slots)]
            self._asked = self._taken + 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closed or self._ready(slot) or self._at_end())
            self.wait_seconds += time.perf_counter() - begin
            if self._closed or not self._ready(slot):
                raise self._failed if self._failed and not self._closed else StopIteration
            if slot.error is not None:
                raise slot.error[1]
            self._taken += 1
        size = len(slot.share.samples)
        tops = self._reader.tops([array[:size] for array in slot.arrays])
        decoded = slot.begun, slot.done
        return Batch(slot.share.first_sample, size, slot.keys[:size], {self._layer: tops}, decoded)

    def release(self) -> None:
        """Gives the buffers of the last batch back before the next one is needed."""
        with self._changed:
            if self._released < self._taken:
                self._released = self._taken
                self._changed.notify_all()

    def close(self) -> None:
        """Stops the threads and waits for them, but not for ever: one may read from a file system that has gone."""
        self.stop()
        self.join(_CLOSE_SECONDS)

    def stop(self) -> None:
        """Lets the threads end after the sample that each is at."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def forsake(self) -> None:
        """Makes the next batch an error. Called in a forked process, which has no data threads and shares with its
        parent the files that these read."""
        self._changed, self._threads = threading.Condition(), []  # a thread may have held the lock at the fork
        self._begun, self._exhausted = self._taken, True
        self._failed = DataError(
            f"layer '{self._layer}': its data are read by the process that this one was forked from; make the net, or "
            "the solver, after the fork"
        )

    def join(self, timeout: float) -> None:
        """Waits until the threads have ended, at most `timeout` seconds for each."""
        for thread in self._threads:
            thread.join(max(0.0, timeout))

    def _ready(self, slot: _Slot) -> bool:
        return self._begun > self._taken and slot.pending == 0

    def _at_end(self) -> bool:
        return self._exhausted and self._begun == self._taken

    def _work(self) -> None:
        pin_thread(self._cores)
        while (piece := self._take_piece()) is not None:
            slot, begin, end = piece
            error = None
            for i in range(begin, end):
                try:
                    sample = Sample(*slot.share.samples[i], place=i)
                    slot.keys[i] = self._reader.load(sample, [array[i, ...] for array in slot.arrays])
                    if self._reader.pairs and i % 2 and error is None:
                        pair = slice(i - 1, i + 1)
                        self._reader.join(slot.share.samples[pair], [array[pair] for array in slot.arrays])
                except MemoryError as raised:  # a reader that knows the item's key has named it
                    item = slot.share.samples[i][1]
                    error = error or (i, DataError(f"layer '{self._layer}': item {item}: {reason(raised)}"))
                except BaseException as raised:
                    error = error or (i, raised)
            self._finish_piece(slot, end - begin, error)

    def _take_piece(self) -> tuple[_Slot, int, int] | None:
        """Returns the next samples to decode, (slot, begin, end); None if there is no more work. Waits for a free
        buffer."""
        with self._changed:
            while not self._closed:
                newest = self._slots[(self._begun - 1) % len(self._slots)]
                if self._begun and self._handed < len(newest.share.samples):
                    begin = self._handed
                    self._handed = min(begin + self._piece, len(newest.share.samples))
                    return newest, begin, self._handed
                if self._exhausted:
                    return None
                due = self._reader.depth or self._begun < self._asked
                if due and self._begun - self._released < len(self._slots):
                    self._begin_batch()
                else:
                    self._changed.wait()
        return None

    def _begin_batch(self) -> None:
        """Takes the next share into a free buffer, or notes that there are no more."""
        share = None
        try:
            share = next(self._shares, None)
        except MemoryError as raised:
            what = f"the order of its {self._reader.size} samples"
            self._failed = DataError(f"layer '{self._layer}': {what}: {reason(raised)}")
        except BaseException as raised:
            self._failed = raised
        if share is None:
            self._exhausted = True
        else:
            self._slots[self._begun % len(self._slots)].begin(share)
            self._begun += 1
            self._handed = 0
        self._changed.notify_all()

    def _finish_piece(self, slot: _Slot, count: int, error: tuple[int, BaseException] | None) -> None:
        with self._changed:
            if error is not None and (slot.error is None or error[0] < slot.error[0]):
                slot.error = error
            slot.pending -= count
            if slot.pending == 0:
                slot.done = time.monotonic_ns()
                self._changed.notify_all()
