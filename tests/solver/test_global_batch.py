"""The advice for a run whose global batch is not the one that its solver is meant for."""

import re

from engine import proto
from engine.config import net_of_solver, parse_solver
from engine.solver.global_batch import batch_warnings, data_batch

MEANT = """global_batch: 32 test_iter: 1 test_interval: 1 net_param {
  layer { name: "data" type: "Data" top: "data" data_param { batch_size: 4 } include { phase: TRAIN } }
  layer { name: "data" type: "Data" top: "data" data_param { batch_size: 5 } include { phase: TEST } } } """


def test_what_gives_the_meant_batch_leaves_tests_alone():
    """The setting that is advised changes the batch of phase TRAIN, not that of TEST."""
    (told,) = batch_warnings(parse_solver(MEANT), 8, 2)
    setting = re.search("--set '([^']+)'", told)
    config = parse_solver(MEANT, overrides=[setting[1]])
    assert data_batch(config) == 16
    assert net_of_solver(config, proto.TEST).message.layer[1].data_param.batch_size == 5


def test_another_iter_size_is_no_advice_where_gradients_are_clipped():
    """The limit applies to the sum over micro-batches, so another iter_size would change what is clipped."""
    (told,) = batch_warnings(parse_solver(MEANT), 8, 2)
    (clipped,) = batch_warnings(parse_solver(MEANT + "clip_gradients: 1"), 8, 2)
    assert "--set iter_size=4 or" in told and "--set iter_size" not in clipped and "8 ranks would" in clipped


def test_indicators_of_sequences_have_the_meant_batch_too():
    """ContinuationIndicator gets as many sequences as the data layer gets samples."""
    indicator = """layer { name: "i" type: "ContinuationIndicator" top: "i"
      continuation_indicator_param { time_step: 7 batch_size: 4 } } } """
    (told,) = batch_warnings(parse_solver(MEANT.removesuffix("} ") + indicator), 8, 2)
    assert "--set 'layer[data@TRAIN].data_param.batch_size=16'" in told
    assert "--set 'layer[i@TRAIN].continuation_indicator_param.batch_size=16'" in told
