"""MLSL_NUM_SERVERS=0: everything is reduced at the end of backward by the solver's own thread, without overlap."""

from engine.comm.strategy import Strategy, strategy


@strategy("blocking")
class Blocking(Strategy):
    def __init__(self, *args):
        super().__init__(*args)
        self.channel = self.world.channel()

    def backward_done(self) -> None:
        super().backward_done()
        # Bucket by bucket as the servers do it: the same sums, the same bits.
        for bucket, gradients in zip(self.buckets, self.slices, strict=True):
            self.queue.wait_ready(bucket.index)
            self.channel.allreduce(gradients)
            self.queue.reduced(bucket.index)
        self.apply_all(self.threads)

    def close(self) -> None:
        super().close()
        self.channel.close()

    def describe(self) -> str:
        return f"{self.world.size} ranks, no servers: {len(self.buckets)} buckets reduced after backward"
