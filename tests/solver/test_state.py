"""The state of a run, and what a snapshot keeps of it."""

import math

from engine.solver.state import PlateauState, TrainingState


def test_the_smoothed_loss_is_the_mean_of_the_last():
    state = TrainingState.new(3)
    assert math.isnan(state.loss)
    seen = []
    for loss in (3.0, 1.0, 2.0, 6.0):
        state.recent_loss.append(loss)
        seen.append(state.loss)
    assert seen == [3.0, 2.0, 2.0, 3.0]


def test_what_is_saved_comes_back():
    state = TrainingState.new(2)
    for loss in (3.0, 1.0, 2.0):
        state.recent_loss.append(loss)
        state.advance(64)
    state.last_rate, state.plateau = 0.5, PlateauState(2, 0.75, 1)
    found = TrainingState.new(2)
    found.restore(state.save(list(state.recent_loss)), samples=1)
    assert found == state and (found.iteration, found.samples_seen, found.loss) == (3, 192, 1.5)


def test_a_state_of_caffe_s_does_not_tell_samples():
    saved = TrainingState(iteration=7).save([])
    saved.samples_seen = None
    found = TrainingState.new(1)
    found.restore(saved, samples=70)
    assert found.samples_seen == 70
