"""Where a rank is, in memory that its sentinel reads even when the rank cannot run. Standard library only."""

import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

# The numbers, int64 each. The executor writes the first four: see Program::Board in csrc/program.h.
BEAT, PLACE, OP, BUCKET, WAITS, SERVER_BEAT, ITERATION, NET, TEXT_BYTES, AWAY, NUMBERS = range(11)
# Values of PLACE; FORWARD and BACKWARD are the executor's as well.
SET_UP, DATA, FORWARD, BACKWARD, UPDATE, SNAPSHOT, END = range(7)
# These may take so many times as long as the others: nothing can be told from within a large read or write.
SLOW, SLOW_FACTOR = (SET_UP, SNAPSHOT, END), 10
SIZE, TEXT = 256 << 10, 8 * NUMBERS
NONE = -1
DISCRIMINATOR = -1  # the number of that net


class Board:
    """`beat()` at every sign of progress. One thread writes; the communication servers beat for themselves."""

    def __init__(self, descriptor: int | None = None):
        """descriptor: of another process' board, to read it."""
        self._file = None
        if descriptor is None:
            import tempfile  # not in sentinels, which are to start at once

            folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
            self._file = tempfile.TemporaryFile(dir=folder)
            self._file.truncate(SIZE)
            descriptor = self._file.fileno()
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, SIZE)
        self.numbers = memoryview(self._memory)[:TEXT].cast("q")
        self._names: dict[str, dict] = {}
        if self._file:
            self.numbers[OP] = self.numbers[BUCKET] = NONE

    # Writing

    def beat(self) -> None:
        self.numbers[BEAT] += 1

    def server_beat(self) -> None:
        """Of any communication server: two at a time may count as one."""
        self.numbers[SERVER_BEAT] += 1

    def enter(self, place: int, bucket: int = NONE) -> None:
        numbers = self.numbers
        numbers[PLACE], numbers[OP], numbers[BUCKET] = place, NONE, bucket
        numbers[BEAT] += 1

    def iteration(self, number: int) -> None:
        self.numbers[ITERATION] = number

    def net(self, number: int) -> None:
        """0: the train net; i + 1: test net i; DISCRIMINATOR."""
        self.numbers[NET] = number

    def waits(self, on: bool) -> None:
        """Whether it is for the other ranks that this one waits."""
        self.numbers[WAITS] = int(on)
        self.numbers[BEAT] += 1

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around a wait for the other ranks, which may be part of a longer one."""
        before = bool(self.numbers[WAITS])
        self.waits(True)
        try:
            yield
        finally:
            self.waits(before)

    def away(self, on: bool) -> None:
        """Whether a program runs code of its own, which may take as long as it likes."""
        self.numbers[AWAY] = int(on)
        self.numbers[BEAT] += 1

    def describe_net(
        self, number: int, ops: Sequence[str], sources: Sequence[str], buckets: Sequence[str] | None = None
    ) -> None:
        """What the numbers stand for. ops: the layer of each; sources: of the data; buckets: what each holds."""
        import json

        self._names[str(number)] = {"ops": list(ops), "sources": list(sources), "buckets": list(buckets or ())}
        text = json.dumps(self._names).encode()
        if TEXT + len(text) <= SIZE:  # else numbers must do
            self.numbers[TEXT_BYTES] = 0
            self._memory[TEXT : TEXT + len(text)] = text
            self.numbers[TEXT_BYTES] = len(text)

    # Reading

    def beats(self) -> tuple[int, int]:
        return self.numbers[BEAT], self.numbers[SERVER_BEAT]

    def is_slow(self) -> bool:
        return self.numbers[PLACE] in SLOW

    def is_ending(self) -> bool:
        return self.numbers[PLACE] == END

    def is_away(self) -> bool:
        return bool(self.numbers[AWAY])

    def waits_for_others(self) -> bool:
        if self.is_away():
            return False
        return bool(self.numbers[WAITS]) or self.numbers[BUCKET] != NONE or self.numbers[PLACE] == UPDATE

    def text(self) -> str:
        """For people: "iteration 41, forward of layer conv1, waits for the gradients of bucket 3 (conv1)"."""
        place, op, bucket, number = (self.numbers[index] for index in (PLACE, OP, BUCKET, NET))
        names = self._read_names().get(str(number), {"ops": [], "sources": [], "buckets": []})
        layer = f"layer {_item(names['ops'], op)}" if op != NONE else "the net"
        doing = {
            SET_UP: "set-up",
            DATA: f"waits for data from {', '.join(names['sources']) or 'its source'}",
            FORWARD: f"forward of {layer}",
            BACKWARD: f"backward of {layer}",
            UPDATE: "waits for the last update",
            SNAPSHOT: "snapshot",
            END: "end of the run",
        }[place]
        words = [] if place == SET_UP else [f"iteration {self.numbers[ITERATION]}"]
        if self.is_away():
            return ", ".join([*words, "the program's own code"])
        words += [f"test net #{number - 1}"] if number > 0 else ["discriminator"] if number == DISCRIMINATOR else []
        words.append(doing)
        if bucket != NONE:
            words.append(f"waits for the gradients of bucket {bucket} ({_item(names['buckets'], bucket)})")
        elif self.numbers[WAITS]:
            words.append("waits for the other ranks")
        return ", ".join(words)

    def _read_names(self) -> dict[str, dict]:
        import json

        try:
            return json.loads(self._memory[TEXT : TEXT + self.numbers[TEXT_BYTES]])
        except ValueError:  # none yet, or just being written
            return {}


def _item(names: Sequence[str], index: int) -> str:
    return names[index] if 0 <= index < len(names) else str(index)
