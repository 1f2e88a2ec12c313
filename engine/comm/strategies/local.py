"""One rank: nothing to reduce. The update runs after backward, on all of the solver's threads."""

from engine.comm.strategies.strategy import Strategy


class Local(Strategy):
    def backward_done(self) -> None:
        super().backward_done()
        for bucket in self.buckets:
            self.queue.wait_ready(bucket.index)  # takes it; backward has marked it
        self.apply_all(self.threads)

    def abandon(self, reason: str) -> None:
        self.queue.abandon()  # nobody else works on it: the iteration may begin anew

    def describe(self) -> str:
        return "1 rank, no communication"
