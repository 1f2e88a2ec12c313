"""What a rank is doing, in shared memory that its sentinel reads even when the rank cannot run. Standard library
only."""

import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

# The places of the numbers, int64 each. The executor writes the first four: see Program::Board in csrc/program.h.
BEAT, PLACE, OP, BUCKET, WAITS, SERVER_BEAT, ITERATION, NET, TEXT_BYTES, AWAY, NUMBERS = range(11)
# Values of PLACE; FORWARD and BACKWARD are the executor's as well.
SET_UP, DATA, FORWARD, BACKWARD, UPDATE, SNAPSHOT, END = range(7)
# These may take SLOW_FACTOR times as long as the others, for a rank cannot beat amid a large read or write.
SLOW, SLOW_FACTOR = (SET_UP, SNAPSHOT, END), 10
SIZE, TEXT = 256 << 10, 8 * NUMBERS
NONE = -1
DISCRIMINATOR = -1  # the number of that net


class Board:
    """A rank calls beat() at every sign of progress. One thread writes; communication servers call server_beat()."""

    def __init__(self, descriptor: int | None = None):
        """Makes a board, or opens that of another process to read it.

        Args:
            descriptor: of the other process' board; None: make one.
        """
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
        """Counts progress of any communication server. Two beats at once may count as one, which is progress all the
        same."""
        self.numbers[SERVER_BEAT] += 1

    def enter(self, place: int, bucket: int = NONE) -> None:
        """Says that the rank is now at `place` (FORWARD, ...), where it waits for `bucket`, if that is given."""
        numbers = self.numbers
        numbers[PLACE], numbers[OP], numbers[BUCKET] = place, NONE, bucket
        numbers[BEAT] += 1

    def iteration(self, number: int) -> None:
        self.numbers[ITERATION] = number

    def net(self, number: int) -> None:
        """Says which net runs. number: 0, the train net; i + 1, test net i; DISCRIMINATOR."""
        self.numbers[NET] = number

    def waits(self, on: bool) -> None:
        """Says whether this rank waits for other ranks."""
        self.numbers[WAITS] = int(on)
        self.numbers[BEAT] += 1

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Surrounds a wait for other ranks. Such waits may be nested."""
        before = bool(self.numbers[WAITS])
        self.waits(True)
        try:
            yield
        finally:
            self.waits(before)

    def away(self, on: bool) -> None:
        """Says whether a user's program runs its own code, which may take as long as it likes."""
        self.numbers[AWAY] = int(on)
        self.numbers[BEAT] += 1

    def describe_net(
        self, number: int, ops: Sequence[str], sources: Sequence[str], buckets: Sequence[str] | None = None
    ) -> None:
        """Gives the numbers of a net names, for text().

        Args:
            number: of the net, as for net().
            ops: the layer of each op.
            sources: the data sources.
            buckets: the layers whose gradients each bucket holds.
        """
        import json

        self._names[str(number)] = {"ops": list(ops), "sources": list(sources), "buckets": list(buckets or ())}
        text = json.dumps(self._names).encode()
        if TEXT + len(text) <= SIZE:  # else text() shows numbers
            self.numbers[TEXT_BYTES] = 0
            self._memory[TEXT : TEXT + len(text)] = text
            self.numbers[TEXT_BYTES] = len(text)

    # Reading

    def beats(self) -> tuple[int, int]:
        """Returns two counts, which have changed if the rank or its communication servers have made progress."""
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
        """Returns text for people: "iteration 41, forward of layer conv1, waits for the gradients of bucket 3
        (conv1)"."""
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
