"""The choice of kernels: all kernels compute the same, and tables of choices are kept, trusted, pinned and refused as
they should be."""

import json
from pathlib import Path

import numpy as np
import pytest

from engine import proto
from engine.comm.world import World
from engine.config import parse_net
from engine.errors import EngineError
from engine.layers.kernels import PASSES, Asked, Choices
from engine.net import Net, NetOptions, kernel_table
from engine.net.kernel_table import Kernels, Table, cache_path, this_machine
from engine.net.measure import Measured, Trial, measure
from tests.layers.harness import PRECISIONS, inputs, make_net, needs_bf16, net_text, set_top_diff

CONV = """layer { name: "conv" type: "Convolution" bottom: "x" top: "y" convolution_param {
  num_output: 48 kernel_size: 3 pad: 1 weight_filler { type: "msra" } bias_filler { type: "uniform" } } }
  layer { name: "relu" type: "ReLU" bottom: "y" top: "y" }"""
PRODUCT = """layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param {
  num_output: 24 weight_filler { type: "xavier" } bias_filler { type: "uniform" } } }"""
SHAPES = {CONV: (3, 32, 11, 9), PRODUCT: (5, 16, 3, 3)}


def net_of(layer: str, precision: str = "fp32", kernels: Choices | None = None) -> Net:
    return make_net(net_text(layer, x=SHAPES[layer]), precision=precision, kernels=kernels or {})


def asked(layer: str, precision: str = "fp32") -> Asked:
    (found,) = net_of(layer, precision).builder.asked
    return found


def results(layer: str, precision: str, kernels: Choices) -> dict[str, np.ndarray]:
    """Returns the top and the gradients of a step with these kernels."""
    net = net_of(layer, precision, kernels)
    generator = np.random.default_rng(3)
    inputs(net)["x"].set(generator.standard_normal(SHAPES[layer], np.float32))
    y = net.forward()["y"]
    set_top_diff(net, "y", generator.standard_normal(y.shape, np.float32))
    net.backward()
    found = {"y": y, "dx": np.asarray(inputs(net)["x"].diff)}
    return found | {placed.name: placed.tensor.diff.get() for placed in net.parameters}


def distance(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def having(layer: str, precision: str) -> list[tuple[str, str]]:
    """Returns (pass, kernel) for each kernel that this processor has for an op."""
    op, found = asked(layer, precision), []
    for name, kernels in op.passes.items():
        for kernel in kernels:
            try:
                Trial(op, {name: kernel}, dx=True, dw=True)
            except (RuntimeError, ValueError):
                continue
            found.append((name, kernel))
    return found


@pytest.mark.parametrize("layer", [CONV, PRODUCT], ids=["Convolution", "InnerProduct"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_kernel_computes_the_same(layer, precision):
    """Differences stay within the rounding of float32 by Winograd's algorithm, or of bf16."""
    key = asked(layer, precision).key if layer is CONV or precision == "bf16" else ""
    expected = results(layer, "fp32", {})
    tried = having(layer, precision) if key else []
    for name, kernel in tried:
        found = results(layer, precision, {key: {name: kernel}})
        for what, values in found.items():
            far = distance(values, expected[what])
            assert far < (5e-6 if precision == "fp32" else 5e-2), (name, kernel, what, far)
    if key:
        assert {name for name, _ in tried} == set(PASSES)


@needs_bf16
def test_float32_kernels_round_less():
    """In float32 kernels only blobs are rounded, not sums of products. This shows that the kernels were really used."""
    key, expected = asked(CONV, "bf16").key, results(CONV, "fp32", {})
    by_fp32 = results(CONV, "bf16", {key: dict.fromkeys(PASSES, "fp32")})
    by_bf16 = results(CONV, "bf16", {key: dict.fromkeys(PASSES, "direct")})
    assert by_fp32["conv[0]"].tobytes() != by_bf16["conv[0]"].tobytes()
    assert distance(by_fp32["conv[0]"], expected["conv[0]"]) < 4e-2
    # choosing the float32 kernel for one pass changes the result of that pass
    for each, what in zip(PASSES, ("y", "dx", "conv[0]"), strict=True):
        found = results(CONV, "bf16", {key: dict.fromkeys(PASSES, "direct") | {each: "fp32"}})
        assert found[what].tobytes() != by_bf16[what].tobytes(), each


@needs_bf16
def test_several_kernels_in_one_op():
    key, expected = asked(CONV, "bf16").key, results(CONV, "fp32", {})
    kernels = {name for _, name in having(CONV, "bf16")}
    for choice in (("fp32", "direct", "direct"), ("direct", "fp32", "winograd"), ("winograd", "direct", "fp32")):
        if set(choice) <= kernels:
            found = results(CONV, "bf16", {key: dict(zip(PASSES, choice, strict=True))})
            for what, values in found.items():
                assert distance(values, expected[what]) < 5e-2, (choice, what)


def test_what_cannot_be_had_is_left_to_the_rules():
    """The table may come from another processor, so a kernel that is not here is passed over."""
    expected = results(CONV, "fp32", {})
    key = asked(CONV).key
    found = results(CONV, "fp32", {key: {"weight_gradient": "amx", "forward": "direct", "data_gradient": "direct"}})
    assert all(distance(values, expected[what]) < 5e-6 for what, values in found.items())


def test_a_measurement_names_what_it_has_timed():
    found = measure(asked(CONV))
    assert set(found.kernels) == set(found.ms) == set(PASSES)
    for name, kernel in found.kernels.items():
        assert found.ms[name][kernel] > 0
    assert "direct" in found.ms["forward"]


def test_nothing_is_asked_where_there_is_one_kernel():
    assert net_of(PRODUCT).builder.asked == []
    direct = CONV.replace("num_output", 'conv_algorithm: "direct" num_output')
    net = make_net(net_text(direct, x=SHAPES[CONV]))
    assert net.builder.asked == []


def test_keys_tell_ops_apart():
    key = asked(CONV).key
    assert key.startswith("Convolution f32 3x32x11x9 to 3x48x11x9 activation=relu")
    assert key.endswith("trains dx dw")
    frozen = CONV.replace('top: "y" convolution', 'top: "y" param { lr_mult: 0 } param { lr_mult: 0 } convolution')
    (other,) = make_net(net_text(frozen, x=SHAPES[CONV])).builder.asked
    assert other.key.endswith("trains dx")
    (test,) = make_net(net_text(CONV, x=SHAPES[CONV]).replace("force_backward: true", ""), proto.TEST).builder.asked
    assert "trains" not in test.key


# Tables


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """Returns the path of this machine's table, in an empty cache folder."""
    monkeypatch.setenv("ENGINE_CACHE", str(tmp_path))
    path = cache_path(this_machine())
    assert path is not None
    return path


@pytest.fixture
def measured(monkeypatch) -> list[str]:
    """Returns the keys that are measured, in order. A stand-in measures, and always chooses Winograd."""
    keys: list[str] = []

    def stand_in(each: Asked) -> Measured:
        keys.append(each.key)
        return Measured(dict.fromkeys(PASSES, "winograd"), {name: {"winograd": 1.0, "direct": 2.0} for name in PASSES})

    monkeypatch.setattr(kernel_table, "measure", stand_in)
    return keys


def built(mode: str, snapshot: str | None = None) -> tuple[Kernels, Net, list[str]]:
    lines: list[str] = []
    kernels = Kernels(mode, snapshot, lines.append)
    return kernels, kernels.build(lambda choices: net_of(CONV, kernels=choices), World()), lines


def choice_of(net: Net) -> dict[str, str]:
    (found,) = net.builder.asked
    return dict(found.choice)


def test_what_was_measured_is_kept(cache, measured):
    _, net, lines = built("measure")
    assert measured == [asked(CONV).key]
    assert choice_of(net) == dict.fromkeys(PASSES, "winograd")
    assert lines[-1].endswith(f"kept in {cache}")
    _, again, lines = built("measure")
    assert len(measured) == 1, "the second run measures nothing"
    assert lines == []
    assert choice_of(again) == choice_of(net)


def test_a_run_that_ends_while_it_measures_loses_little(cache, measured, monkeypatch):
    two = CONV + CONV.replace('"y"', '"z"').replace('"x"', '"y"').replace('"conv"', '"conv2"').replace("48", "24")
    stand_in, beats = kernel_table.measure, []

    def ended(each: Asked) -> Measured:
        if beats:
            raise KeyboardInterrupt
        return stand_in(each)

    monkeypatch.setattr(kernel_table, "measure", ended)
    monkeypatch.setattr(kernel_table, "KEEP_SECONDS", 0.0)
    kernels = Kernels("measure", beat=lambda: beats.append(None))
    with pytest.raises(KeyboardInterrupt):
        kernels.build(lambda choices: make_net(net_text(two, x=SHAPES[CONV]), kernels=choices), World())
    assert len(beats) == 1 and list(Table.from_text(cache.read_text(), str(cache)).ops) == measured


def test_the_default_measures_nothing(cache, measured):
    kernels, net, _ = built("default")
    assert measured == []
    assert choice_of(net) == {}
    assert kernels.saved() is None
    assert not cache.exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: text.replace('"format": 1', '"format": 2'),
        lambda text: text.replace('"winograd"', '"fft"'),
        lambda text: text.replace("1.0", '"soon"'),
        lambda text: "[" * 100_000,
        lambda text: "\udcff",
    ],
)
def test_a_damaged_cache_is_rebuilt_with_one_note(cache, measured, damage):
    built("measure")
    whole = cache.read_text()
    cache.write_text(damage(whole), errors="surrogateescape")
    _, _, lines = built("measure")
    assert len(measured) == 2
    assert len([line for line in lines if "measured anew" in line]) == 1
    assert str(cache) in lines[0]
    assert cache.read_text() == whole


def test_a_cache_of_another_machine_is_not_believed(cache, measured):
    built("measure")
    table = json.loads(cache.read_text())
    table["machine"]["processor"] = "Difference Engine No. 2"
    cache.write_text(json.dumps(table))
    _, _, lines = built("measure")
    assert len(measured) == 2
    assert "is of another machine (processor: Difference Engine No. 2; here: " in lines[0]
    assert json.loads(cache.read_text())["machine"] == this_machine()


def test_what_another_run_has_measured_meanwhile_counts(cache, measured):
    """Otherwise the two runs would compute with different kernels when they start again."""
    built("measure")
    key = asked(CONV).key
    theirs = Table(this_machine(), {key: Measured(dict.fromkeys(PASSES, "direct"))})
    mine = {key: Measured(dict.fromkeys(PASSES, "winograd"))}
    cache.write_text(theirs.to_text())
    assert kernel_table._keep(cache, mine)
    assert mine[key].kernels == theirs.ops[key].kernels


def test_a_cache_folder_that_cannot_be_written_is_no_error(measured, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ENGINE_CACHE", str(tmp_path / "file" / "folder"))
    _, net, lines = built("measure")
    assert choice_of(net) == dict.fromkeys(PASSES, "winograd")
    assert f"not kept: {tmp_path}/file/folder/kernels." in lines[-1] and "ENGINE_CACHE" in lines[-1]


def test_a_file_pins_the_choice(cache, measured, tmp_path):
    built("measure")
    pinned = tmp_path / "pinned.json"
    pinned.write_text(cache.read_text().replace('"forward": "winograd"', '"forward": "direct"'))
    _, net, lines = built(str(pinned))
    assert choice_of(net)["forward"] == "direct"
    assert choice_of(net)["data_gradient"] == "winograd"
    assert (len(measured), lines) == (1, [])


def test_a_file_from_elsewhere_is_used_with_a_note(cache, measured, tmp_path):
    table = Table({"processor": "another"}, {asked(CONV).key: Measured({"forward": "direct"})})
    path = tmp_path / "pinned.json"
    path.write_text(table.to_text())
    _, net, lines = built(str(path))
    assert choice_of(net) == {"forward": "direct"}
    assert "was measured elsewhere (processor: another; here: " in lines[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "this is no JSON"),
        ("[1]", "got something else"),
        ('{"format": 7}', "got format 7"),
        ('{"format": 1, "machine": {}}', "machine or ops is missing"),
        ('{"format": 1, "machine": {}, "ops": {"x": 1}}', "'x' has no kernels"),
        ('{"format": 1, "machine": {}, "ops": {"x": {"kernels": {"forward": []}}}}', "forward by []; known: passes"),
        ('{"format": 1, "machine": {}, "ops": {"x": {"kernels": {"up": "direct"}}}}', "up by 'direct'; known: passes"),
        ('{"format": 1, "machine": {}, "ops": {"x": {"kernels": {}, "ms": {"forward": 3}}}}', "times that are no numb"),
    ],
)
def test_a_bad_file_is_refused(tmp_path, text, message):
    path = tmp_path / "table.json"
    path.write_text(text)
    with pytest.raises(EngineError) as error:
        built(str(path))
    assert str(error.value).startswith(f"{path}: expected the JSON that --kernels measure keeps")
    assert message in str(error.value)


def test_a_snapshot_comes_before_the_cache(cache, measured):
    kernels, _, _ = built("measure")
    saved = kernels.saved()
    assert saved is not None and "ms" in saved
    cache.write_text(cache.read_text().replace('": "winograd"', '": "direct"'))
    for mode in ("measure", "default"):
        _, net, lines = built(mode, saved)
        assert choice_of(net) == dict.fromkeys(PASSES, "winograd"), mode
        assert lines == ["Kernels: 1 as in the snapshot"]
    assert choice_of(built("measure")[1])["forward"] == "direct"


def test_a_snapshot_of_another_machine_is_not_followed(cache, measured):
    kernels, _, _ = built("measure")
    saved = (kernels.saved() or "").replace(str(this_machine()["onednn"]), "0.1")
    _, net, lines = built("default", saved)
    assert choice_of(net) == {}
    assert "those of the snapshot are of another machine (onednn: 0.1; here: " in lines[0]


def test_another_build_measures_anew_but_follows_a_snapshot(cache, measured, monkeypatch):
    """If a new build used the old table, new kernels would never be measured. A run that is resumed keeps its
    choice."""
    kernels, _, _ = built("measure")
    saved = kernels.saved()
    monkeypatch.setattr(kernel_table, "_digest", lambda path: "another")
    assert cache_path(this_machine()) != cache
    _, net, lines = built("default", saved)
    assert choice_of(net) == dict.fromkeys(PASSES, "winograd")
    assert lines == ["Kernels: 1 as in the snapshot"]
    built("measure")
    assert len(measured) == 2


class SeveralRanks(World):
    """Stands for one of several ranks. The others' answers are given, in the order of the questions; None is filled in
    by this rank."""

    def __init__(self, rank: int, answers: list[list]):
        self.rank, self.size, self._answers = rank, len(answers[0]), answers

    def gather(self, value):
        mine = list(self._answers.pop(0))
        mine[self.rank] = value if mine[self.rank] is None else mine[self.rank]
        return mine


def test_a_rank_takes_over_what_the_first_of_its_kind_has(measured, cache):
    """Rank 0 has another kind of processor. Rank 1 is the first of this kind, and this is rank 2."""
    key, machine = asked(CONV).key, this_machine()
    led = Table(machine, {key: Measured(dict.fromkeys(PASSES, "direct"))})
    world = SeveralRanks(2, [[{"processor": "x"}, machine, None], [None] * 3, [Table({}), led, None], [False] * 3])
    kernels = Kernels("measure")
    net = kernels.build(lambda choices: net_of(CONV, kernels=choices), world)
    assert choice_of(net) == dict.fromkeys(PASSES, "direct")
    assert measured == []


def test_measuring_in_plain_layouts():
    """Ranks with different processors use plain layouts."""
    text = net_text(CONV, x=SHAPES[CONV])
    net = Net(parse_net(text, "test.prototxt"), proto.TRAIN, NetOptions(plain_parameters=True))
    (op,) = net.builder.asked
    assert op.key.endswith(" plain")
    assert set(measure(op).kernels) == set(PASSES)
