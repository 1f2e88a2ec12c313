"""caffe.Timer."""

import time

import engine.caffe as caffe


def test_it_measures_from_start_to_stop():
    timer = caffe.Timer()
    assert timer.ms == 0
    timer.start()
    time.sleep(0.02)
    timer.stop()
    first = timer.ms
    assert first >= 20
    time.sleep(0.02)
    assert timer.ms == first
    timer.start()
    assert 0 < timer.ms < first  # started anew, and stopped by reading ms
    assert timer.ms == timer.ms
