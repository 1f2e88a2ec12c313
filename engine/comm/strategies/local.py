"""One rank: there is nothing to reduce. The update runs after backward, on all of the solver's threads."""

from engine.comm.strategies.strategy import Strategy


class Local(Strategy):
    def backward_done(self) -> None:
        super().backward_done()
        for bucket in self.buckets:
            self.queue.wait_ready(bucket.index)  # returns at once, as backward has marked it, and takes the bucket
        self.apply_all(self.threads)

    def abandon(self, reason: str) -> None:
        self.queue.abandon()  # no other thread works on the step: the iteration may begin anew

    def describe(self) -> str:
        return "1 rank, no communication"
