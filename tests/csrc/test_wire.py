"""Gradients as bfloat16: the kernels agree with NumPy to the bit."""

import numpy as np
import pytest

from engine.host import _core

COUNT = 5003  # more than one block, and an odd number at the end


def rounded(values: np.ndarray) -> np.ndarray:
    """Rounds float32 to the nearest bfloat16, ties to even, and returns it as float32. Computed by arithmetic, for
    finite values."""
    fraction, exponent = np.frexp(values.astype(np.float64))
    with np.errstate(over="ignore"):
        return np.ldexp(np.rint(fraction * 256) / 256, exponent).astype(np.float32)


def widened(packed: np.ndarray) -> np.ndarray:
    return (packed.astype(np.uint32) << 16).view(np.float32)


def some(seed: int, *shape: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    scale = 10.0 ** generator.integers(-20, 20, shape)
    scale[..., -16:] = 1  # values after the last whole vector have one size, so that each matters in a sum
    return (generator.standard_normal(shape) * scale).astype(np.float32)


def packed(values: np.ndarray, residual: np.ndarray | None = None) -> np.ndarray:
    out = np.empty(values.size, np.uint16)
    _core.pack_bf16(values, out, residual)
    return out


def test_pack_rounds_to_nearest_even():
    values = some(1, COUNT)
    values[:4] = 1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8), 1 + 2**-8 + 2**-20  # three ties, and a value just above one
    values[-4:] = values[:4]
    assert np.array_equal(widened(packed(values)), rounded(values))
    for part in (slice(4), slice(-4, None)):
        assert widened(packed(values))[part].tolist() == [1, 1 + 2**-6, -1, 1 + 2**-7]
    back = np.empty(COUNT, np.float32)
    _core.unpack_bf16(packed(values), back)
    assert np.array_equal(back, rounded(values))


def test_what_is_not_finite_stays_so():
    values = np.array([np.inf, -np.inf, np.nan, 3.4e38, 0.0, -0.0], np.float32)
    least = np.array([0x7F800001], np.uint32).view(np.float32)  # a NaN that has only its lowest bit
    values = np.concatenate([values, least, np.ones(25, np.float32), least])  # two vectors, and a value after them
    residual = np.zeros(values.size, np.float32)
    back = widened(packed(values, residual))
    assert np.array_equal(widened(packed(values)), back, equal_nan=True), "the ways to pack differ"
    summed = np.empty(values.size, np.uint16)
    _core.sum_bf16(np.zeros((1, values.size), np.uint16), 0, values, summed)
    assert np.array_equal(widened(summed), np.where(back == 0, np.float32(0), back), equal_nan=True)
    assert back[0] == np.inf and back[1] == -np.inf and np.isnan(back[[2, 6, 32]]).all() and back[3] == np.inf
    assert not back[4:6].any()
    assert not residual.any(), "feeding back a loss that is not finite would spoil the rest of the run"


def test_feedback_keeps_what_rounding_takes():
    values, residual = some(2, COUNT), some(3, COUNT) * np.float32(1e-3)
    whole = values + residual
    sent = widened(packed(values, residual))
    assert np.array_equal(sent, rounded(whole)) and np.array_equal(residual, whole - sent)
    total, residual = np.zeros(COUNT), np.zeros(COUNT, np.float32)
    for _ in range(64):
        total += widened(packed(values, residual))
    # Without feedback, each of the 64 passes would be off by the same 2^-8 of the value.
    np.testing.assert_allclose(total, 64 * values.astype(np.float64), rtol=2**-14, atol=0)


@pytest.mark.parametrize(("parts", "own"), [(1, 0), (2, 0), (2, 1), (7, 3)])
@pytest.mark.parametrize("feedback", [False, True])
def test_sums_are_made_in_float32_and_rounded_once(parts, own, feedback):
    stride = COUNT + 21
    rows = np.zeros((parts, stride), np.uint16)
    values, residual = some(own, COUNT), some(9, COUNT) * np.float32(1e-3) if feedback else None
    kept = None if residual is None else residual.copy()
    for part in range(parts):
        rows[part, :COUNT] = packed(some(part, COUNT)) if part != own else packed(values, kept)
    expected = np.zeros(COUNT, np.float32)
    for part in range(parts):
        expected += widened(rows[part, :COUNT])
    rows[own] = 0x7FC0  # NaN, since this row must not be read
    out = np.empty(COUNT, np.uint16)
    _core.sum_bf16(rows, own, values, out, residual)
    assert np.array_equal(widened(out), rounded(expected))
    assert np.array_equal(values, some(own, COUNT))
    if feedback:
        assert np.array_equal(residual, kept + (expected - rounded(expected)))


@pytest.mark.parametrize(("parts", "own"), [(1, 0), (2, 1), (7, 3)])
def test_rows_of_float32_add_up_in_their_order(parts, own):
    rows = np.full((parts, COUNT + 21), np.nan, np.float32)
    expected = np.zeros(COUNT, np.float32)
    for part in range(parts):
        expected += some(part, COUNT)
        if part != own:
            rows[part, :COUNT] = some(part, COUNT)
    values = some(own, COUNT)
    _core.sum_rows(rows, own, values)
    assert np.array_equal(values, expected)


def test_arrays_that_do_not_fit_are_refused():
    values = np.ones(8, np.float32)
    with pytest.raises(ValueError, match="packed: expected a writable"):
        _core.pack_bf16(values, np.empty(7, np.uint16))
    with pytest.raises(ValueError, match="residual: expected a writable"):
        _core.pack_bf16(values, np.empty(8, np.uint16), np.zeros(8))
    with pytest.raises(ValueError, match="rows must be"):
        _core.sum_bf16(np.zeros((2, 4), np.uint16), 0, values, np.empty(8, np.uint16))
    with pytest.raises(ValueError, match="own one of them"):
        _core.sum_rows(np.zeros((2, 8), np.float32), 2, values)
    with pytest.raises(ValueError, match="rows: expected a writable"):
        _core.sum_rows(np.zeros((2, 8), np.uint16), 1, values)


@pytest.mark.parametrize("offset", range(0, 17, 3))
@pytest.mark.parametrize("count", [0, 1, 15, 16, 31, 1000])
def test_unpacking_past_the_caches(offset, count):
    packed = np.random.default_rng(count).integers(0, 2**16, count, dtype=np.uint16)
    expected, values = np.empty(count, np.float32), np.full(offset + count + 9, 7, np.float32)
    _core.unpack_bf16(packed, expected)
    _core.unpack_bf16_away(packed, values[offset : offset + count])
    assert values[offset : offset + count].tobytes() == expected.tobytes()
    assert (values[:offset] == 7).all() and (values[offset + count :] == 7).all()


@pytest.mark.parametrize("own", [0, 2])
def test_sums_of_rows_that_are_not_rounded(own):
    random = np.random.default_rng(4)
    rows = random.standard_normal((3, 5000)).astype(np.float32)
    packed, values = np.empty(rows.shape, np.uint16), rows[own].copy()
    _core.pack_bf16(rows.ravel(), packed.reshape(-1))
    exact = np.empty(rows.size, np.float32)
    _core.unpack_bf16(packed.reshape(-1), exact)
    exact = exact.reshape(rows.shape)
    exact[own] = values
    _core.sum_bf16_rows(packed, own, values[:4990])
    np.testing.assert_array_equal(values[:4990], ((exact[0] + exact[1]) + exact[2])[:4990])
    assert (values[4990:] == rows[own, 4990:]).all()
    with pytest.raises(ValueError, match="rows must be"):
        _core.sum_bf16_rows(packed, 3, values)
