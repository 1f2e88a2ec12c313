"""The update rules compared with their formulas in float64, and with what BVLC Caffe computed."""

import itertools
import re

import numpy as np
import pytest

from engine import proto
from engine.host import _core
from tests.shared import SHARED, needs_shared

COUNT = 70_000  # several tasks, and an odd number at the end
RULES = _core.update_rules()
CONSTANTS = {"momentum": 0.9, "momentum2": 0.99, "delta": 1e-4, "rms_decay": 0.95}


def reference(rule: str, w, d, h, u, rate: float, iteration: int, correction: float = 1.0):
    """Computes a step of `rule` in float64 from weights, the regularised gradient d and two histories. Returns the new
    weights and histories."""
    momentum, beta2, delta = CONSTANTS["momentum"], CONSTANTS["momentum2"], CONSTANTS["delta"]
    if rule == "SGD":
        h = momentum * correction * h + rate * d
        return w - h, h, u
    if rule == "Nesterov":
        before, h = correction * h, momentum * correction * h + rate * d
        return w - ((1 + momentum) * h - momentum * before), h, u
    if rule == "AdaGrad":
        h = h + d**2
        return w - rate * d / (np.sqrt(h) + delta), h, u
    if rule == "RMSProp":
        h = CONSTANTS["rms_decay"] * h + (1 - CONSTANTS["rms_decay"]) * d**2
        return w - rate * d / (np.sqrt(h) + delta), h, u
    if rule == "AdaDelta":
        h = momentum * h + (1 - momentum) * d**2
        step = d * np.sqrt((u + delta) / (h + delta))
        return w - rate * step, h, momentum * u + (1 - momentum) * step**2
    t = iteration + 1
    h = momentum * h + (1 - momentum) * d
    u = beta2 * u + (1 - beta2) * d**2
    return w - rate * np.sqrt(1 - beta2**t) / (1 - momentum**t) * h / (np.sqrt(u) + delta), h, u


class Arenas:
    """Weights, gradients and histories of COUNT floats in two buckets. One range of parameters has its own
    multipliers."""

    def __init__(self, rule: str, seed: int = 3, **decay):
        random = np.random.default_rng(seed)
        self.weights = random.standard_normal(COUNT).astype(np.float32)
        self.weights[:9] = 0  # the sign of 0 is 0
        self.gradients = random.standard_normal(COUNT).astype(np.float32)
        self.histories = [np.zeros(COUNT, np.float32) for _ in RULES[rule].histories]
        cut = COUNT // 3 + 5
        ranges = [[(0, 1000, 1, 1), (1000, cut, 2, 0.5)], [(cut, COUNT, 1, 1)]]
        self.lr_mult, self.decay_mult = np.ones(COUNT), np.ones(COUNT)
        self.lr_mult[1000:cut], self.decay_mult[1000:cut] = 2, 0.5
        buckets = [[_core.ParameterRange(*one) for one in bucket] for bucket in ranges]
        constants = {field: CONSTANTS[field] for field in RULES[rule].constants}
        self.updater = _core.Updater(rule, self.weights, self.gradients, self.histories, buckets, constants, **decay)

    def step(self, threads: int = 1, clip_factor: float = 1, **step) -> None:
        self.updater.set_step(**step)
        self.updater.set_clip_factor(clip_factor)
        for bucket in range(self.updater.buckets):
            self.updater.apply(bucket, threads)


@pytest.mark.parametrize("rule", sorted(RULES))
@pytest.mark.parametrize("l1", [False, True])
def test_rule_matches_its_formula(rule, l1):
    arenas = Arenas(rule, weight_decay=0.01, l1=l1)
    w, h, u = arenas.weights.astype(np.float64), np.zeros(COUNT), np.zeros(COUNT)
    for iteration in range(5):
        rate, clip, scale = 0.1 / (iteration + 1), 0.5 if iteration == 2 else 1, 0.25
        d = scale * clip * arenas.gradients
        if rule == "AdamW":  # it has no L1
            w = w - (0 if l1 else rate * arenas.lr_mult * 0.01 * arenas.decay_mult * w)
        else:
            d = d + 0.01 * arenas.decay_mult * (np.sign(w) if l1 else w)
        w, h, u = reference(rule, w, d, h, u, rate * arenas.lr_mult, iteration)
        arenas.step(rate=rate, scale=scale, iteration=iteration, clip_factor=clip)
    np.testing.assert_allclose(arenas.weights, w, rtol=1e-5, atol=2e-5)
    for history, expected in zip(arenas.histories, (h, u)):
        np.testing.assert_allclose(history, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rule", ["SGD", "Nesterov"])
def test_momentum_correction(rule):
    arenas = Arenas(rule)
    w, h = arenas.weights.astype(np.float64), np.zeros(COUNT)
    for iteration, (rate, correction) in enumerate([(0.1, 1.0), (0.4, 4.0), (0.2, 0.5)]):
        w, h, _ = reference(rule, w, arenas.gradients, h, None, rate * arenas.lr_mult, iteration, correction)
        arenas.step(rate=rate, scale=1, iteration=iteration, momentum_correction=correction)
    np.testing.assert_allclose(arenas.weights, w, rtol=1e-5, atol=1e-5)


def test_a_clip_factor_is_of_one_step():
    clipped, whole = Arenas("AdaGrad"), Arenas("AdaGrad")
    clipped.step(rate=0, scale=1, iteration=0, clip_factor=0.5)
    clipped.histories[0][:] = 0
    clipped.updater.set_step(rate=0.1, scale=1, iteration=1)
    clipped.updater.apply(0)
    whole.updater.set_step(rate=0.1, scale=1, iteration=1)
    whole.updater.apply(0)
    assert np.array_equal(clipped.weights, whole.weights)


@pytest.mark.parametrize("local_clip", [False, True])
def test_parameters_without_decay_may_keep_their_rate(local_clip):
    """Beside a parameter with decay there are one whose weights are all 0, one whose weights are not, and one that does
    not learn."""
    random = np.random.default_rng(6)
    weights, gradients = random.standard_normal((2, 4000)).astype(np.float32)
    weights[1000:2000] = 0
    w, g = weights.astype(np.float64), 0.5 * gradients.astype(np.float64)
    ranges = [(0, 1000, 2, 1, 0), (1000, 2000, 2, 0, 1), (2000, 3000, 0.5, 0, 2), (3000, 4000, 0, 0, 3)]
    options = {"weight_decay": 0.003, "local_ratio": 0.01, "local_clip": local_clip, "local_decayed_only": True}
    buckets = [[_core.ParameterRange(*one) for one in ranges]]
    arrays = weights, gradients, [np.zeros_like(weights)]
    updater = _core.Updater("SGD", *arrays, buckets, {"momentum": 0}, **options)
    updater.set_step(0.4, 0.5, 0)
    updater.measure(0)
    updater.set_local_rates(updater.squares())
    updater.apply(0)
    norm = np.linalg.norm(w[:1000])
    local = 0.01 * norm / (np.linalg.norm(g[:1000]) + 0.003 * norm)
    w[:1000] -= (min(0.4, local) if local_clip else 0.4 * local) * (g[:1000] + 0.003 * w[:1000])
    w[1000:2000] -= 0.4 * 2 * g[1000:2000]
    w[2000:3000] -= 0.4 * 0.5 * g[2000:3000]
    np.testing.assert_allclose(weights, w, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("local_clip", [False, True])
def test_local_rates(local_clip):
    """One parameter lies in two buckets, one does not learn, and the weights of one are all 0."""
    random = np.random.default_rng(5)
    weights, gradients = random.standard_normal((2, 50_000)).astype(np.float32)
    weights[48_000:] = 0
    before, w = weights.copy(), weights.astype(np.float64)
    ranges = [[(0, 100, 1, 1, 0), (100, 20_000, 2, 1, 1)], [(20_000, 40_000, 2, 1, 1), (40_000, 48_000, 0, 1, 2)]]
    ranges.append([(48_000, 50_000, 1, 1, 3)])
    ratio, decay, rate, scale, clip = (0.5 if local_clip else 0.01), 0.003, 0.4, 0.25, 0.5
    options = {"weight_decay": decay, "local_ratio": ratio, "local_clip": local_clip}
    buckets = [[_core.ParameterRange(*one) for one in bucket] for bucket in ranges]
    arrays = weights, gradients, [np.zeros_like(weights)]
    updater = _core.Updater("SGD", *arrays, buckets, {"momentum": 0}, **options)
    updater.set_step(rate, scale, 0)
    updater.set_clip_factor(clip)
    for bucket in (2, 0, 1):  # servers may take buckets in any order
        updater.measure(bucket, 2)
    updater.set_local_rates(updater.squares())
    for bucket in (1, 2, 0):
        updater.apply(bucket)

    limited = []
    for begin, end in itertools.pairwise((0, 100, 40_000, 48_000, 50_000)):
        g, norm = scale * clip * gradients[begin:end].astype(np.float64), np.linalg.norm(w[begin:end])
        local = ratio * norm / (np.linalg.norm(g) + decay * norm) if norm else 1
        limited.append(local > rate)
        taken = min(rate, local) if local_clip else rate * local
        w[begin:end] -= (taken if begin != 40_000 else 0) * (g + decay * w[begin:end])
    assert local_clip == all(limited)
    np.testing.assert_allclose(weights, w, rtol=1e-6, atol=1e-7)
    assert np.array_equal(weights[40_000:48_000], before[40_000:48_000])


@pytest.mark.parametrize("rule", sorted(RULES))
def test_same_bits_for_any_number_of_threads(rule):
    results = []
    for threads in (1, 2, 5):
        arenas = Arenas(rule, weight_decay=0.01)
        for iteration in range(3):
            arenas.step(threads, rate=0.1, scale=0.5, iteration=iteration)
        results.append([arenas.weights, *arenas.histories])
    for other in results[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(results[0], other))


def test_what_a_rule_declares():
    """Messages use the names of histories, and solver files those of types and constants. None may occur twice, and all
    constants must be fields."""
    histories = [name for rule in RULES.values() for name in rule.histories]
    assert len(set(histories)) == len(histories)
    asked = [(rule.type, rule.decoupled_weight_decay) for rule in RULES.values()]
    assert len(set(asked)) == len(asked)
    fields = {field for rule in RULES.values() for field in rule.constants}
    assert fields <= set(proto.SolverParameter.DESCRIPTOR.fields_by_name)
    adamw = RULES["AdamW"]
    assert (adamw.name, adamw.type, adamw.decoupled_weight_decay) == ("AdamW", "Adam", True)
    assert adamw.constants == {"momentum": (0, 1), "momentum2": (0, 1), "delta": (np.finfo(np.float32).tiny, np.inf)}
    assert adamw.histories == ["AdamW's first moment", "AdamW's second moment"]


def test_sum_of_squares():
    arenas = Arenas("SGD")
    sums = [[arenas.updater.measure(bucket, threads) for bucket in range(2)] for threads in (1, 2, 5)]
    assert sums[0] == sums[1] == sums[2]
    np.testing.assert_allclose(sum(sums[0]), (arenas.gradients.astype(np.float64) ** 2).sum(), rtol=1e-13)


def test_denormals_are_flushed():
    arenas = Arenas("SGD")
    arenas.gradients[:] = 0
    arenas.histories[0][:] = 1e-38
    for iteration in range(3):
        arenas.step(rate=0.1, scale=1, iteration=iteration)
    assert not arenas.histories[0].any()


@pytest.mark.parametrize("rule", ["SGD", "Adam"])
@pytest.mark.parametrize(("packed", "keep"), [(False, True), (True, True), (True, False)])
def test_an_update_by_ranges_gives_the_same_bits(rule, packed, keep):
    whole, parts = Arenas(rule, weight_decay=0.01), Arenas(rule, weight_decay=0.01)
    sums = np.zeros(COUNT, np.uint16)
    if packed:
        _core.pack_bf16(whole.gradients, sums)
        _core.unpack_bf16(sums, whole.gradients)
        parts.gradients[:] = np.nan  # these must not be read
    whole.step(rate=0.1, scale=0.5, iteration=3)
    parts.updater.set_step(rate=0.1, scale=0.5, iteration=3)
    for bucket, (begin, end) in enumerate([(0, COUNT // 3 + 5), (COUNT // 3 + 5, COUNT)]):
        cuts = [begin, begin + 7, begin + 1003, end]
        for first, last in itertools.pairwise(cuts):
            parts.updater.apply_range(bucket, first, last, sums[first:last] if packed else None, keep)
    for one, other in zip([whole.weights, *whole.histories], [parts.weights, *parts.histories], strict=True):
        assert np.array_equal(one, other)
    assert np.array_equal(parts.gradients, whole.gradients) == keep


def test_bad_arguments_are_named():
    arenas = Arenas("SGD")
    arrays = arenas.weights, arenas.gradients
    momentum = {"momentum": 0.9}
    with pytest.raises(ValueError, match='unknown update rule "SGDD"; known: AdaDelta, AdaGrad'):
        _core.Updater("SGDD", *arrays, [], [], {})
    with pytest.raises(ValueError, match="Adam keeps 2 histories, got 1"):
        _core.Updater("Adam", *arrays, arenas.histories, [], {})
    with pytest.raises(ValueError, match="SGD reads momentum, got nothing"):
        _core.Updater("SGD", *arrays, arenas.histories, [], {})
    with pytest.raises(ValueError, match="SGD reads momentum, got delta, momentum"):
        _core.Updater("SGD", *arrays, arenas.histories, [], {"momentum": 0.9, "delta": 1})
    with pytest.raises(ValueError, match=f"in an arena of {COUNT} floats"):
        _core.Updater("SGD", *arrays, arenas.histories, [[_core.ParameterRange(0, COUNT + 1)]], momentum)
    with pytest.raises(ValueError, match="gradients: expected a writable float32 array"):
        _core.Updater("SGD", arenas.weights, arenas.gradients.astype(np.float64), arenas.histories, [], momentum)
    with pytest.raises(IndexError, match="bucket 2 of 2"):
        arenas.updater.apply(2)
    with pytest.raises(ValueError, match="packed: expected a writable"):
        arenas.updater.apply_range(0, 0, 10, np.zeros(9, np.uint16))
    rows = np.zeros((2, 10), np.uint16)
    for begin, end in ((10, 9), (-1, 5), (-(2**63), 2**63 - 1)):
        with pytest.raises(ValueError, match=rf"no range: \[{begin}, {end}\)"):
            arenas.updater.apply_range(0, begin, end)
        with pytest.raises(ValueError, match=rf"no range: \[{begin}, {end}\)"):
            arenas.updater.apply_rows(0, begin, end, rows, 0, np.zeros(10, np.uint16))


def golden_net(parameters, x, labels):
    """Returns the loss and the gradients of golden/net.prototxt in float64: 3 x 3 convolution, ReLU, inner product,
    softmax loss."""
    conv_w, conv_b, ip_w, ip_b = parameters
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))  # n, c, y, x, ky, kx
    conv = np.einsum("ncyxij,ocij->noyx", windows, conv_w) + conv_b[:, None, None]
    flat = np.maximum(conv, 0).reshape(len(x), -1)
    scores = flat @ ip_w.T + ip_b
    p = np.exp(scores - scores.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    loss = -np.log(p[np.arange(len(x)), labels]).mean()
    p[np.arange(len(x)), labels] -= 1
    p /= len(x)
    conv_d = (p @ ip_w).reshape(conv.shape) * (conv > 0)
    return loss, [np.einsum("ncyxij,noyx->ocij", windows, conv_d), conv_d.sum((0, 2, 3)), p.T @ flat, p.sum(0)]


def solver_field(text: str, name: str, default):
    found = re.search(rf'\b{name}: "?([\w.-]+)', text)
    return type(default)(found.group(1)) if found else default


NAMES = ("conv_0", "conv_1", "ip_0", "ip_1")
MULTIPLIERS = ((1, 1), (2, 0), (1, 1), (1, 1))


@needs_shared("golden/solvers")
@pytest.mark.parametrize("case", "sgd sgd_l1 sgd_clip sgd_iter_size nesterov adagrad rmsprop adadelta adam".split())
def test_ten_steps_as_caffe_took_them(case):
    golden = np.load(SHARED / "golden/solvers" / f"{case}.npz")
    text = str(golden["solver"])
    rule, iter_size = solver_field(text, "type", "SGD"), solver_field(text, "iter_size", 1)
    defaults = {"momentum": 0.0, "momentum2": 0.999, "delta": 1e-8, "rms_decay": 0.99}
    constants = {field: solver_field(text, field, defaults[field]) for field in RULES[rule].constants}
    decay = solver_field(text, "weight_decay", 0.0), solver_field(text, "regularization_type", "L2")
    before = [golden[f"before_{name}"] for name in NAMES]
    ends = np.cumsum([0] + [blob.size for blob in before])
    weights = np.concatenate([blob.ravel() for blob in before])
    gradients = np.zeros_like(weights)
    arrays = weights, gradients, [np.zeros_like(weights) for _ in RULES[rule].histories]
    ranges = [_core.ParameterRange(a, b, *mult) for a, b, mult in zip(ends[:-1], ends[1:], MULTIPLIERS)]
    updater = _core.Updater(rule, *arrays, [ranges], constants, weight_decay=decay[0], l1=decay[1] == "L1")
    clip, losses = solver_field(text, "clip_gradients", -1.0), []
    for iteration in range(10):
        blobs = [weights[a:b].reshape(blob.shape) for a, b, blob in zip(ends[:-1], ends[1:], before)]
        loss, diffs = golden_net(blobs, golden["x"].astype(np.float64), golden["l"].astype(int))
        losses.append(loss)
        gradients[:] = iter_size * np.concatenate([diff.ravel() for diff in diffs])
        updater.set_step(solver_field(text, "base_lr", 0.1), 1 / iter_size, iteration)
        norm = np.sqrt(updater.measure(0))
        updater.set_clip_factor(clip / norm if 0 < clip < norm else 1)
        updater.apply(0)
    # in float32, a small loss is the rest of 1 - p
    np.testing.assert_allclose(losses, golden["losses"], rtol=2e-5, atol=1e-6)
    for name, a, b in zip(NAMES, ends[:-1], ends[1:]):
        np.testing.assert_allclose(weights[a:b], golden[f"after10_{name}"].ravel(), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("keep", [False, True])
def test_a_share_from_rows(keep):
    """The sum over rows, the rule and packing are one pass. It gives the same bits as these steps one after the other,
    on arrays of the share alone."""
    random = np.random.default_rng(8)
    begin, end, at = 16_000, 40_000, 128  # a range of the gradients, and where it begins in the share's arrays
    parameters = [(begin, 20_000), (20_016, 39_990)]  # with gaps between them
    ranges = [_core.ParameterRange(*one, weights_shift=at - begin, history_shift=at - begin) for one in parameters]
    weights, history = random.standard_normal((2, at + end - begin)).astype(np.float32)
    gradients = random.standard_normal(50_000).astype(np.float32)
    rows = random.integers(0x3C00, 0x3F00, (3, 30_000), dtype=np.uint16)

    def updater(*arrays: np.ndarray) -> _core.Updater:
        weights, gradients, history = arrays
        made = _core.Updater("SGD", weights, gradients, [history], [ranges], {"momentum": 0.9})
        made.set_step(0.1, 0.5, 3)
        return made

    expected, sums, remembered = weights.copy(), gradients.copy(), history.copy()
    _core.sum_bf16_rows(rows, 1, sums[begin:end])
    updater(expected, sums, remembered).apply_range(0, begin, end)
    new = np.empty(expected.size, np.uint16)
    _core.pack_bf16(expected, new)
    new = new[at:]
    new[4000:4016] = new[-10:] = 0

    packed, before = np.full(end - begin, 0xABCD, np.uint16), gradients.copy()
    updater(weights, gradients, history).apply_rows(0, begin, end, rows, 1, packed, keep)
    assert np.array_equal(weights, expected) and np.array_equal(history, remembered) and np.array_equal(packed, new)
    for first, last in parameters:
        assert np.array_equal(gradients[first:last], (sums if keep else before)[first:last])
    with pytest.raises(ValueError, match="rows must be"):
        updater(weights, gradients, history).apply_rows(0, begin, end, rows[:, :100], 1, packed, keep)


def test_local_rates_of_a_share():
    """The share's weights begin at another place than its gradients."""
    random = np.random.default_rng(8)
    whole, gradients = random.standard_normal((2, 3000)).astype(np.float32)
    found = []
    for begin in (0, 1000):
        weights, history = whole[begin:].copy(), np.zeros(3000 - begin, np.float32)
        ranges = [_core.ParameterRange(1000, 2000, weights_shift=-begin, history_shift=-begin)]
        arrays = weights, gradients, [history]
        updater = _core.Updater("SGD", *arrays, [ranges], {"momentum": 0}, weight_decay=0.1, local_ratio=0.01)
        updater.set_step(0.4, 1, 0)
        updater.measure(0)
        updater.set_local_rates(updater.squares())
        updater.apply(0)
        found.append(weights[1000 - begin : 2000 - begin])
    assert np.array_equal(*found) and not np.array_equal(found[0], whole[1000:2000])


@pytest.mark.parametrize("bounds", [{"least": -0.5}, {"most": 0.5}, {"least": -0.5, "most": 0.5}])
def test_weights_stay_within_bounds(bounds):
    weights = np.linspace(-1, 1, 100, dtype=np.float32)
    expected = np.clip(weights, bounds.get("least"), bounds.get("most"))
    arrays = weights, np.zeros(100, np.float32), [np.zeros(100, np.float32)]
    updater = _core.Updater("SGD", *arrays, [[_core.ParameterRange(0, 100, **bounds)]], {"momentum": 0})
    updater.set_step(0.1, 1, 0)
    updater.apply(0)
    assert np.array_equal(weights, expected)


def test_a_range_outside_of_a_share_is_refused():
    arrays = np.zeros(100, np.float32), np.zeros(100, np.float32), [np.zeros(40, np.float32)]
    with pytest.raises(ValueError, match=r"range \[90, 100\) in an arena of 40 floats"):
        _core.Updater("SGD", *arrays, [[_core.ParameterRange(90, 100)]], {"momentum": 0.9})
    _core.Updater("SGD", *arrays, [[_core.ParameterRange(90, 100, history_shift=-60)]], {"momentum": 0.9})
