"""servers: 0 (MLSL_NUM_SERVERS=0): the solver's own thread reduces everything at the end of backward, without
overlap."""

import time

from engine.comm.strategies.strategy import Strategy
from engine.watchdog.board import UPDATE


class Blocking(Strategy):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.channels = self.make_channels()
        self.reducing_ns = 0

    def backward_done(self) -> None:
        super().backward_done()
        # Chunk by chunk, as servers do it, so that the sums are the same bits.
        for bucket in self.buckets:
            self.queue.wait_ready(bucket.index)
            self.world.board.enter(UPDATE, bucket.index)
            begin = time.monotonic_ns()
            for chunk in self.chunks(bucket) if self.ranks > 1 else ():
                self.reduce(chunk, self.channels[bucket.parts])
            self.reducing_ns += time.monotonic_ns() - begin
            self.queue.reduced(bucket.index)
        self.apply_all(self.threads)
        if self.sharded or self.averages:
            begin = time.monotonic_ns()
            for bucket in self.buckets:
                for chunk in self.chunks(bucket):
                    if self.sharded:
                        self.pass_on(chunk, self.channels[bucket.parts], self.sharded.of_chunk(chunk.begin))
                    self.average(chunk, self.channels[bucket.parts])
            self.reducing_ns += time.monotonic_ns() - begin

    def waited_ns(self) -> int:
        return super().waited_ns() + self.reducing_ns

    def close(self) -> None:
        super().close()
        for channel in (*self.channels.values(), *filter(None, [self.plain_channel])):
            channel.close()

    def describe(self) -> str:
        return f"{self.world.size} ranks, no servers: {self.describe_buckets()} reduced after backward"
