"""Communication servers: threads that reduce and update a bucket while backward goes on with the next."""

import os
import threading
from concurrent.futures import Future

from engine.comm.buckets import Bucket
from engine.comm.strategy import Strategy, strategy
from engine.errors import ConfigError


@strategy("servers")
class Servers(Strategy):
    """Bucket i belongs to server i % S, which takes its buckets in ascending order on a communicator of its own: the
    same order of collectives on every rank, whatever the threads' timing."""

    def __init__(self, *args):
        super().__init__(*args)
        count = max(1, min(self.settings.servers, len(self.buckets)))
        self.channels = [self.world.channel() for _ in range(count)]
        self.sums = [0.0] * len(self.buckets)  # of squares, where the step clips
        self.meeting = threading.Barrier(count, action=self._clip)
        started = [Future() for _ in range(count)]
        # Daemons: a server that is stuck in MPI because another rank has died must not keep this one.
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

    def close(self) -> None:
        super().close()
        for thread in self.servers:
            thread.join()
        for channel in self.channels:
            channel.close()

    def describe(self) -> str:
        cores = self.settings.cores
        where = f"on cores {','.join(map(str, cores[: len(self.servers)]))}" if cores else "not pinned"
        servers = f"{len(self.servers)} communication servers each ({where})"
        return f"{self.world.size} ranks, {servers}, {len(self.buckets)} buckets"

    def _run(self, server: int, started: Future) -> None:
        try:
            self._pin(server)
        except ConfigError as error:
            started.set_exception(error)
            return
        started.set_result(None)
        try:
            while self._serve_step(server):
                pass
        except threading.BrokenBarrierError:
            pass  # another server has failed and parked its error
        except Exception as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            self.queue.fail(f"communication server {server}: {reason}")
            self.meeting.abort()

    def _pin(self, server: int) -> None:
        if self.settings.cores is None:
            return
        core = self.settings.cores[server]
        try:
            os.sched_setaffinity(0, {core})  # 0: this thread only
        except OSError as error:
            raise ConfigError(
                f"MLSL_SERVER_AFFINITY: core {core} cannot be used on this host ({error.strerror})"
            ) from None

    def _serve_step(self, server: int) -> bool:
        """Reduces and updates this server's buckets of one step; False when the queue has stopped."""
        deferred = []
        for bucket in self.buckets[server :: len(self.servers)]:
            if not self.queue.wait_ready(bucket.index):
                return False
            self.channels[server].allreduce(self.slices[bucket.index])
            self.queue.reduced(bucket.index)
            if self.clip > 0:  # the norm needs every bucket: all servers meet first
                self.sums[bucket.index] = self.updater.sum_squares(bucket.index)
                deferred.append(bucket)
            else:
                self._update(bucket, server)
        if deferred:
            self.meeting.wait()
            for bucket in deferred:
                self._update(bucket, server)
        return True

    def _update(self, bucket: Bucket, server: int) -> None:
        self.updater.apply(bucket.index, 1)
        self.queue.done(bucket.index, server)

    def _clip(self) -> None:
        self.updater.set_clip_factor(self.clip_factor(self.sums))
