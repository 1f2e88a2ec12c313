"""Communication servers: threads that reduce and update one bucket while backward continues with the next.

Bucket i belongs to server i % S. Each server has a communicator of its own and reduces one chunk of one bucket at a
time. The order of the chunks is the same on every rank:

- without priority, buckets ascend: the order in which backward completes them;
- with priority, rank 0's server chooses before every chunk, among the buckets that are ready there, the one that the
  next forward needs first (the highest, because forward reads parameters in the reverse order), and tells the others
  (Channel.follow). So another bucket may go before the rest of a large one, between two of its chunks.

With sharded updates (shares.py), a chunk's reduction gives each rank the sums of its share, which it updates and sends
to all. The server goes on to the next chunk when the other ranks' new weights are in the arena, so that weights come in
the order of the chunks; with priority this is the order of the next forward. They may be overwritten: a bucket is ready
only when backward on this rank reads its weights no more.

In mode LOCAL a server updates its chunks with this rank's gradients alone, in any order, without other ranks. In a step
that ends with an average it sums each chunk's weights and state over the ranks right after their update, in the order
above.

Why this cannot deadlock. Each communicator is used by one thread per rank, and all ranks make the same collective calls
on it in the same order, so a call completes once every rank has made it. A rank is late for a call only because (a) its
bucket is not ready there, (b) an earlier call on the same communicator has not completed, (c) the rank has not begun
the step, or (d) for norms, another of its servers has not reached the barrier (where the norms are of shares, the last
one there adds them up over the ranks, on a communicator for that alone). (a) and (c) wait for the solver's thread,
which is in backward or before it; there it waits only for updates of earlier steps or, with synchronised BatchNorm, for
the other ranks' solver threads to reach the same op, never for a reduction of this step. (b) leads back to the first
call that has not completed, hence to (a), (c) or (d); servers reach the barrier of (d) when they have reduced their
buckets of this step. So, by induction over the steps and over the calls within each, every call is made on every
rank.
"""

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future

from engine.comm.settings import CommSettings
from engine.comm.strategies.strategy import CLOSING, Chunk, Strategy
from engine.comm.world import Channel
from engine.errors import CommError, ConfigError
from engine.host.cores import helper_cores, pin_thread

Chunks = dict[int, list[Chunk]]  # the chunks that are left of each bucket, by its index


class Servers(Strategy):
    """See above. The weights are the same bits for any number of servers, with and without priority: a chunk's sum does
    not depend on when it is made."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        count = max(1, min(self.settings.servers, len(self.buckets)))
        kinds = [self.make_channels() for _ in range(count)]
        self.channels = [channels.pop(1) for channels in kinds]
        self.part_channels = kinds  # for each server, by the number of parts
        self.squares = [0.0] * len(self.buckets)  # each bucket's sum of squares, if the step needs norms
        self.meeting = threading.Barrier(count, action=lambda: self.use_norms(self.squares))
        self.seats = helper_cores()
        started = [Future() for _ in range(count)]
        # Daemons: a server that is stuck in MPI, because another rank has died, must not keep this process from ending.
        self.servers = [
            threading.Thread(
                target=self._run, args=(server, started[server]), name=f"comm-server-{server}", daemon=True
            )
            for server in range(count)
        ]
        for thread in self.servers:
            thread.start()
        for future in started:
            future.result()  # raises what kept the server from starting

    def stop_after_loss(self) -> None:
        super().stop_after_loss()
        self.meeting.abort()
        self._join()

    def close(self) -> None:
        super().close()
        self._join()
        of_parts = [one for channels in self.part_channels for one in channels.values()]
        for channel in [*self.channels, *of_parts, *filter(None, [self.plain_channel])]:
            channel.close()

    def _join(self) -> None:
        """Waits for the servers to end. Raises CommError if that takes longer than CLOSING."""
        end = time.monotonic() + CLOSING
        for thread in self.servers:
            thread.join(max(0.0, end - time.monotonic()))
        if any(thread.is_alive() for thread in self.servers):
            raise CommError(f"communication servers have not ended for {CLOSING:g} s: they wait for other ranks")

    @property
    def server_count(self) -> int:
        return len(self.servers)

    def describe(self) -> str:
        cores = self.settings.cores
        where = f"on cores {','.join(map(str, cores[: len(self.servers)]))}" if cores else "not pinned"
        servers = f"{self.server_count} communication server{'s' if self.server_count > 1 else ''} each ({where})"
        order = ", the first layers first" if self.settings.priority else ""
        return f"{self.world.size} ranks, {servers}, {self.describe_buckets()}{order}"

    def _run(self, server: int, started: Future) -> None:
        try:
            take_seat(self.settings, server, self.seats)
        except ConfigError as error:
            started.set_exception(error)
            return
        started.set_result(None)
        from engine.host import _core

        _core.flush_denormals()  # MPI adds in this thread
        try:
            while self._serve_step(server):
                pass
        except threading.BrokenBarrierError:
            pass  # another server has failed and parked its error
        except Exception as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            self.queue.fail(f"communication server {server}: {reason}")
            self.meeting.abort()

    def _serve_step(self, server: int) -> bool:
        """Reduces and updates this server's buckets of one step. Returns False when the queue has stopped."""
        deferred = []
        left = {bucket.index: self.chunks(bucket) for bucket in self.buckets[server :: len(self.servers)]}
        while left:
            index = self._next(server, left)
            if index is None:
                return False
            chunk = left[index].pop(0)
            if not left[index]:
                del left[index]
            parts = self.buckets[index].parts
            channel = self.channels[server] if parts == 1 else self.part_channels[server][parts]
            if not self.needs_norms:
                self._reduce_and_update(index, chunk, channel, server, last=index not in left)
                continue
            if self.ranks > 1:
                self.reduce(chunk, channel)
            self.world.board.server_beat()
            if index not in left:
                self.queue.reduced(index)
                self.squares[index] = self.updater.measure(index)
                deferred.append(index)
        if deferred:  # norms need every bucket: all servers meet first
            self.meeting.wait()
            for index in sorted(deferred, reverse=True):  # the next forward's order
                self.updater.apply(index)
                for chunk in self.chunks(self.buckets[index]) if self.sharded or self.averages else ():
                    if self.sharded:
                        self.pass_on(chunk, self.channels[server], self.sharded.of_chunk(chunk.begin))
                    self.average(chunk, self.channels[server])
                    self.world.board.server_beat()
                self.queue.done(index, server)
        return True

    def _reduce_and_update(self, index: int, chunk: Chunk, channel: Channel, server: int, last: bool) -> None:
        """Reduces and updates a chunk in one pass, while it is in the cache. last: it is the last of its bucket."""
        if self.sharded:
            mine = self.update_share(index, chunk, channel)
            if last:
                self.queue.reduced(index)
            self.pass_on(chunk, channel, mine)
            self.world.board.server_beat()
        elif self.ranks == 1:
            if last:
                self.queue.reduced(index)
            self.updater.apply_range(index, chunk.begin, chunk.end)
            self.average(chunk, channel)
            self.world.board.server_beat()
        else:
            sums = channel.reduce(chunk.gradients, chunk.residual)
            self.world.board.server_beat()
            if last:
                self.queue.reduced(index)
            self.updater.apply_range(index, chunk.begin, chunk.end, sums, self.keep_gradients)
        if last:
            self.queue.done(index, server)

    def _next(self, server: int, left: Chunks) -> int | None:
        """Waits for the next bucket, and returns its index; None when the queue has stopped."""
        if not self.settings.priority:
            index = min(left)
        else:
            # Ranks other than 0 also wait here first, asleep in the queue, for a bucket that they could reduce; only
            # then for rank 0's choice, in MPI.
            index = self.queue.wait_first(sorted(left, reverse=True))
            if index < 0:
                return None
            if self.ranks > 1 or self.averages:
                index = self.channels[server].follow(index)
        return index if self.queue.wait_ready(index) else None


def take_seat(settings: CommSettings, server: int, seats: Sequence[int]) -> None:
    """Binds the calling thread, a server, to its core in the settings, or to the cores `seats` if they give none.
    Raises ConfigError."""
    if settings.cores is None:
        pin_thread(seats)
        return
    core = settings.cores[server]
    try:
        os.sched_setaffinity(0, {core})  # 0: this thread only
    except OSError as error:
        named = "comm_param { affinity } or MLSL_SERVER_AFFINITY"
        raise ConfigError(f"{named}: core {core} cannot be used on this host ({error.strerror})") from None
