"""The queue at which executor and servers meet: order, errors, times."""

import threading
import time

import pytest

from engine.errors import CommError
from engine.host import _core


def serve(queue, buckets, log, steps):
    for _ in range(steps):
        for bucket in buckets:
            if not queue.wait_ready(bucket):
                return
            log.append(bucket)
            queue.done(bucket, server=buckets[0])


def test_two_servers_and_many_steps():
    queue, logs, steps = _core.ReadyQueue(7), ([], []), 200
    servers = [
        threading.Thread(target=serve, args=(queue, list(range(s, 7, 2)), logs[s], steps), daemon=True) for s in (0, 1)
    ]
    for server in servers:
        server.start()
    for step in range(steps):
        for bucket in reversed(range(7)):  # as the next forward does
            queue.wait_done(bucket)
        queue.begin_step(step)
        for bucket in range(7):
            queue.ready(bucket)
    queue.wait_all_done()
    for server in servers:
        server.join(10)
    assert logs == ([0, 2, 4, 6] * steps, [1, 3, 5] * steps)
    assert queue.waited_ns() == sum(queue.waited_ns(bucket) for bucket in range(7)) >= 0


def test_nothing_in_flight_does_not_wait():
    queue = _core.ReadyQueue(2)
    queue.wait_all_done()
    queue.begin_step(0)
    queue.wait_done(1)  # not yet marked, so the weights are those of the step before
    assert queue.missing() == [0, 1]


def test_wrong_use_is_refused():
    queue = _core.ReadyQueue(2)
    with pytest.raises(RuntimeError, match="bucket 0 is ready outside a step"):
        queue.ready(0)
    queue.begin_step(0)
    queue.ready(0)
    with pytest.raises(RuntimeError, match="bucket 0 is marked ready twice in step 0"):
        queue.ready(0)
    with pytest.raises(RuntimeError, match="step 1 begins while bucket 0 of the step before is in flight"):
        queue.begin_step(1)
    with pytest.raises(IndexError, match="bucket 2 of 2"):
        queue.wait_done(2)
    queue.done(0)
    with pytest.raises(RuntimeError, match="step 0 has begun already"):
        queue.begin_step(0)


def test_timeout_and_close():
    queue = _core.ReadyQueue(1)
    queue.begin_step(0)
    assert not queue.wait_ready(0, timeout=0.01)
    threading.Timer(0.05, queue.close).start()
    assert not queue.wait_ready(0)
    assert queue.stopped


def test_a_parked_error_reaches_the_waiter():
    queue = _core.ReadyQueue(2)
    queue.begin_step(0)
    queue.ready(1)
    threading.Timer(0.05, queue.fail, ["communication server 1: link down"]).start()
    with pytest.raises(CommError, match="communication server 1: link down"):
        queue.wait_done(1)
    queue.fail("a later one")
    with pytest.raises(CommError, match="link down"):
        queue.wait_done(0)
    for timeout in (-1, 0.01):
        with pytest.raises(CommError, match="link down"):
            queue.wait_all_done(timeout)
    assert not queue.wait_ready(1)


def test_events():
    queue = _core.ReadyQueue(1)
    queue.record(True)
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    for step in (5, 6):
        queue.begin_step(step)
        queue.ready(0)
        queue.wait_ready(0)
        queue.reduced(0)
        queue.done(0, server=3)
    events = queue.take_events()
    assert [event[:3] for event in events] == [(5, 0, 3), (6, 0, 3)]
    assert queue.times(0) == events[1]
    times = [moment for event in events for moment in event[3:]]
    assert [before, *times] == sorted([before, *times]) and times[-1] <= time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    queue.record(False)
    queue.begin_step(7)
    queue.ready(0)
    queue.done(0)
    assert queue.take_events() == []


def test_the_first_in_order_of_those_that_are_ready():
    queue = _core.ReadyQueue(4)
    queue.begin_step(0)
    for bucket in (0, 2):
        queue.ready(bucket)
    assert queue.wait_first([3, 2, 1, 0]) == 2
    assert queue.wait_first([0, 2]) == 0
    found = []
    waiter = threading.Thread(target=lambda: found.append(queue.wait_first([3, 1])))
    waiter.start()
    time.sleep(0.05)
    assert not found
    queue.ready(1)
    waiter.join(5)
    assert found == [1]
    for bucket in (0, 1, 2):
        queue.done(bucket)
    waiter = threading.Thread(target=lambda: found.append(queue.wait_first([0, 1, 2, 3])))
    waiter.start()
    queue.close()
    waiter.join(5)
    assert found == [1, -1]


def test_a_bucket_starts_with_its_first_chunk():
    queue = _core.ReadyQueue(1)
    for step in (0, 1):
        queue.begin_step(step)
        queue.ready(0)
        assert queue.wait_ready(0)
        start = queue.times(0)[4]
        time.sleep(0.01)
        assert queue.wait_ready(0) and queue.times(0)[4] == start >= queue.times(0)[3]
        queue.done(0)


def test_an_abandoned_step_may_begin_anew():
    queue = _core.ReadyQueue(2)
    queue.begin_step(2)
    queue.ready(0)
    queue.done(0)
    queue.begin_step(3)
    queue.ready(1)
    assert not queue.wait_all_done(0.01)
    queue.abandon()
    assert queue.wait_all_done(0.01)
    queue.wait_all_done()
    queue.begin_step(3)
    queue.ready(1)
    assert queue.missing() == [0]
