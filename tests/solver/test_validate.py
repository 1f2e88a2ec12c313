"""Checks of a solver's fields before a run: what is refused, and what is noted."""

import subprocess
import sys

import pytest

from engine.config import parse_solver
from engine.errors import ConfigError, ConfigErrors
from engine.solver.validate import check_snapshots, notes, validate
from tests.mpi import REPO

GOOD = 'base_lr: 0.1 lr_policy: "fixed" max_iter: 10'


def check(text: str) -> None:
    config = parse_solver(text, "solver.prototxt")
    validate(config.message, lambda field: config.where(path=field))


def test_a_good_solver():
    check(GOOD)
    check(GOOD + " test_iter: 1 test_interval: 5 momentum: 0.9 iter_size: 2")
    check(GOOD + " comm_param { affinity: 5 }")  # enough, if MLSL_NUM_SERVERS is 1
    # 6,000,000 iterations, with 1,000 samples in batches of 100.
    check(GOOD.replace("max_iter: 10", "max_epoch: 600000"))


@pytest.mark.parametrize(
    "more, reason",
    [
        ("momentum: 1", "momentum: expected 0 or more and less than 1, got 1"),
        ('type: "Adam" delta: 0', "delta: expected more than 0, got 0"),
        ('type: "RMSProp" delta: 1e-60', "delta: expected more than 0, got 0"),
        ("iter_size: 0", "iter_size: expected 1 or more, got 0"),
        ('type: "sgd"', "unknown solver type 'sgd'; did you mean 'SGD'?"),
        ('type: "AdaGrad" momentum: 0.9', "type AdaGrad has no momentum"),
        ('type: "RMSProp" rms_decay: 1', "rms_decay: expected 0 or more and less than 1, got 1"),
        ('type: "Adam" delta: -1', "delta: expected more than 0, got -1"),
        ('regularization_type: "L3"', "unknown regularization_type 'L3'"),
        ("test_iter: 5", "test_iter is given, but no test_interval"),
        ("test_iter: -1 test_interval: 5", "test_iter: expected 0 or more, got -1"),
        ("disabled_update: true", "disabled_update is not supported"),
        ("local_lr_auto: true local_gw_ratio: 0", "local_gw_ratio: expected more than 0, got 0"),
        ('local_lr_auto: true larc_policy: "clipp"', "unknown larc_policy 'clipp'; did you mean 'clip'"),
        ("larc: true local_lr_auto: true", "larc and local_lr_auto are both given; keep one of them"),
        ("larc: true larc_eta: 0", "larc_eta: expected more than 0, got 0"),
        ('momentum_policy: "polly"', "unknown momentum_policy 'polly'; did you mean 'poly'"),
        ('momentum_policy: "poly" max_momentum: 1', "max_momentum: expected 0 or more and less than 1, got 1"),
        ('weight_decay_policy: "x"', "unknown weight_decay_policy 'x'"),
        ("max_weight_decay: -1", "max_weight_decay: expected 0 or more, got -1"),
        ("clamp_weights_lower: 1", "expected bounds around 0, got 1 to"),
        ('larc_policy: "clip"', "larc_policy is given, but neither larc: true nor local_lr_auto"),
        ("decoupled_weight_decay: true", 'goes with type "Adam" and L2, got type "SGD"'),
        ('eval_type: "detections"', "unknown eval_type 'detections'; did you mean 'detection'"),
        ('ap_version: "12point"', "unknown ap_version '12point'; did you mean '11point'"),
        ("snapshot: -1", "snapshot: expected 0 or more"),
        ("comm_param { bucket_mb: -1 }", "comm_param: bucket_mb: expected more than 0, got -1"),
    ],
)
def test_a_bad_field_is_named_with_its_place(more, reason):
    with pytest.raises(ConfigError) as raised:
        check(f"{GOOD}\n{more}")
    assert reason in str(raised.value)
    assert str(raised.value).startswith("solver.prototxt:2:")


@pytest.mark.parametrize("warmup", ["warmup_iter: 5", "warmup_epoch: 1", 'warmup_iter: 5 warmup_policy: "quadratic"'])
def test_a_warm_up_without_an_end_is_refused(warmup):
    """multifixed needs no base_lr, but a warm-up rises to it: without it, the rate would rise to 0."""
    text = 'lr_policy: "multifixed" stagelr: 0.1 stagelr: 0.01 stageiter: 50 stageiter: 100 max_iter: 100'
    check(text)
    check(f"{text} base_lr: 0.1 {warmup}")
    check(f'{text} warmup_iter: 5 warmup_start_lr: 0.01 warmup_policy: "constant"')
    with pytest.raises(ConfigError, match=r"^solver\.prototxt:2:1: warmup_\w+: .* rises to base_lr, which .* give it"):
        check(f"{text}\n{warmup}")


def test_a_denormal_delta_counts_as_zero(tmp_path):
    """This needs a process of its own, because a test of this one may have switched to reading denormals as 0."""
    (tmp_path / "net.prototxt").touch()
    (tmp_path / "solver.prototxt").write_text(f'{GOOD} net: "net.prototxt"\ntype: "Adam" delta: 1e-39')
    command = [sys.executable, "-m", "engine", "train", "--solver", "solver.prototxt"]
    done = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(REPO)}, capture_output=True, text=True)
    said = "solver.prototxt:2:14: delta: expected 1.2e-38 or more (less counts as zero), got 1e-39\n"
    assert done.returncode == 1 and said in done.stderr, done.stderr


def test_all_complaints_come_together():
    with pytest.raises(ConfigErrors) as raised:
        check('base_lr: -1 lr_policy: "wrong" iter_size: 0')
    assert len(raised.value.errors) == 4  # base_lr, iter_size, the missing max_iter, lr_policy
    assert len(str(raised.value).splitlines()) == 4


def test_the_snapshot_folder(tmp_path):
    def prefix(value, more=""):
        message = parse_solver(f'{GOOD} snapshot_prefix: "{value}" {more}').message
        check_snapshots(message, f"{tmp_path}/s.prototxt", "s.prototxt:1:1")

    prefix("")  # in the solver's folder
    prefix(f"{tmp_path}/net")
    prefix(f"{tmp_path}/")
    prefix("net")
    prefix("nowhere/net", "snapshot_after_train: false")
    with pytest.raises(ConfigError, match=r"s\.prototxt:1:1: snapshot_prefix .*no folder nowhere"):
        prefix("nowhere/net")


def test_notes():
    message = parse_solver(f"{GOOD} solver_mode: GPU device_id: 1").message
    assert [note.split()[0] for note in notes(message)] == ["solver_mode:", "device_id"]
    assert list(notes(parse_solver(f"{GOOD} solver_mode: CPU").message)) == []
    message = parse_solver(f'{GOOD} type: "AdaDelta" momentum: 0.9 momentum2: 0.9 rms_decay: 0.98 delta: 1e-6').message
    reason = "is ignored: solver type AdaDelta does not read it"
    assert list(notes(message)) == [f"momentum2 {reason}", f"rms_decay {reason}"]
    assert list(notes(parse_solver(f'{GOOD} type: "RMSProp" momentum: 0.9').message)) == []
    for type_, count in {"SGD": 0, "Nesterov": 0, "Adam": 1, "RMSProp": 1}.items():
        message = parse_solver(f'{GOOD} type: "{type_}" momentum_correction: true').message
        assert [note.split()[0] for note in notes(message)].count("momentum_correction") == count


@pytest.mark.parametrize(
    ("text", "switch"),
    [
        ("warmup_start_lr: 0.01", "warmup_iter: 5"),
        ("warmup_start_lr: 0.01", "warmup_epoch: 1"),
        ('warmup_policy: "quadratic"', "warmup_iter: 5"),
        ("policy_after_warmup: true", "warmup_iter: 5"),
        ("max_momentum: 0.95", 'momentum_policy: "opt"'),
        ("momentum_power: 2", 'momentum_policy: "poly"'),
        ("max_weight_decay: 0.1", 'weight_decay_policy: "poly"'),
        ("weight_decay_power: 2", 'weight_decay_policy: "poly"'),
        ("larc_eta: 0.01", "larc: true"),
        ("local_gw_ratio: 0.01", "local_lr_auto: true"),
        ("local_lr_decayed_only: true", "local_lr_auto: true"),
        ("test_compute_loss: true", ""),
        ("test_offset: 3", ""),
    ],
)
def test_fields_that_nothing_reads_are_noted(text, switch):
    field, name = text.split(":")[0], switch.split(":")[0].replace("_epoch", "_iter")
    (note,) = notes(parse_solver(f"{GOOD} {text}").message)
    assert note.startswith(f"{field} is ignored" + (f" without {name}" if switch else ""))
    assert not switch or not list(notes(parse_solver(f"{GOOD} {text} {switch}").message))


@pytest.mark.parametrize("field", ["priority: true", "affinity: 3"])
def test_what_servers_read_is_noted_where_there_are_none(field):
    def found(comm: str) -> list[str]:
        return list(notes(parse_solver(f"{GOOD} comm_param {{ {field} {comm} }}").message))

    assert found("") == found("servers: 2") == []
    assert found("servers: 0") == [f"comm_param.{field.split(':')[0]} is ignored without servers (servers: 0)"]


def test_plateau_where_ranks_do_not_wait_for_each_other():
    text = f"{GOOD.replace('fixed', 'plateau')} gamma: 0.1 plateau_winsize: 5 comm_param {{ mode: "
    assert list(notes(parse_solver(text + "SYNC }").message)) == []
    (note,) = notes(parse_solver(text + "LOCAL }").message)
    assert note.startswith("lr_policy 'plateau' reads the loss of all ranks, which wait for each other")


def test_scaling_by_the_global_batch_where_each_rank_steps_by_its_own():
    text = f"{GOOD} lr_scaling {{ }} comm_param {{ mode: "
    assert list(notes(parse_solver(text + "SYNC }").message)) == []
    (note,) = notes(parse_solver(text + "LOCAL }").message)
    assert note.startswith("lr_scaling goes by the global batch, and with mode: LOCAL each rank steps by its own")
    assert note.endswith("the rate may be too large; give it a cap, or leave lr_scaling out")
    (capped,) = notes(parse_solver((text + "LOCAL }").replace("{ }", "{ cap: 0.4 }")).message)
    assert capped.endswith("the rate may be too large, up to its cap, 0.4")


def test_momentum_that_intels_caffe_corrects_by_itself():
    """Intel's SGD does so in a warm-up. A solver of BVLC's Caffe names no engine, so nothing is noted for it."""
    text = f'{GOOD} engine: "MKLDNN" momentum: 0.9 warmup_iter: 5'

    def told(text: str) -> bool:
        return any(note.startswith("momentum is not corrected") for note in notes(parse_solver(text).message))

    assert told(text)
    for other in ("momentum_correction: true", "momentum_correction: false", 'type: "Nesterov"'):
        assert not told(f"{text} {other}")
    assert not told(text.replace('engine: "MKLDNN"', "")) and not told(text.replace("momentum: 0.9", ""))
    assert not told(text.replace("warmup_iter: 5", ""))


def test_tests_without_a_net_are_noted():
    """Caffe does not test such a solver, either."""
    text = 'base_lr: 1 lr_policy: "fixed" max_iter: 9 train_net: "x"'
    assert list(notes(parse_solver(text).message)) == []
    for field in ("test_interval", "test_epoch"):
        found = list(notes(parse_solver(f"{text} {field}: 1").message))
        assert found == [f"{field} tests nothing: train_net is for training alone; give a test_net, or net"]
        assert list(notes(parse_solver(f'{text} {field}: 1 test_net: "x"').message)) == []


@pytest.mark.parametrize("name", ["a" * 250, "a" * 5000, "a/" * 3000 + "a"])
def test_a_snapshot_prefix_that_is_too_long_for_a_file(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"^s\.prototxt:1: snapshot_prefix") as refused:
        check_snapshots(parse_solver(f'{GOOD} snapshot_prefix: "{name}"').message, "s.prototxt", "s.prototxt:1")
    assert "ame too long" in str(refused.value) or "name of at most" in str(refused.value)
