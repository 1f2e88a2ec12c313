import numpy as np
import pytest

from engine import proto
from engine.errors import ConfigError
from engine.layers.base import Parameter
from engine.layers.fillers import fill, fill_parameter, keyed_generator

SHAPE = (200, 50, 3, 2)


def values(shape=SHAPE, seed=1, **fields):
    result = fill(shape, proto.FillerParameter(**fields), keyed_generator(seed, "layer", 0))
    assert result.dtype == np.float32 and result.shape == shape
    return result


def test_constant_and_its_default():
    assert not values().any()
    assert (values(type="constant", value=3) == 3).all()


def test_uniform():
    drawn = values(type="uniform", min=-2, max=6)
    assert -2 <= drawn.min() < -1.9 and 5.9 < drawn.max() <= 6
    np.testing.assert_allclose([drawn.mean(), drawn.var()], [2, 64 / 12], rtol=0.05)


def test_gaussian():
    drawn = values(type="gaussian", mean=2, std=3)
    np.testing.assert_allclose([drawn.mean(), drawn.std()], [2, 3], rtol=0.05)


def test_sparse_gaussian():
    drawn = values((100, 400), type="gaussian", std=1, sparse=15)
    np.testing.assert_allclose((drawn != 0).mean(), 0.15, rtol=0.05)
    np.testing.assert_allclose(drawn[drawn != 0].std(), 1, rtol=0.05)
    assert not values((100, 400), type="gaussian", sparse=0).any()


@pytest.mark.parametrize("norm, fan", [("FAN_IN", 300), ("FAN_OUT", 1200), ("AVERAGE", 750)])
def test_variance_norm(norm, fan):
    xavier, msra = (values(type=t, variance_norm=norm) for t in ("xavier", "msra"))
    bound = np.sqrt(3 / fan)
    assert 0.99 * bound < np.abs(xavier).max() <= bound * (1 + 1e-6)
    np.testing.assert_allclose(msra.std(), np.sqrt(2 / fan), rtol=0.02)


def test_fan_out_of_a_vector_is_its_count():
    drawn = values((1000,), type="xavier", variance_norm="FAN_OUT")
    assert np.abs(drawn).max() <= np.sqrt(3 / 1000)


def test_positive_unitball():
    drawn = values(type="positive_unitball")
    assert drawn.min() >= 0
    np.testing.assert_allclose(drawn.sum((1, 2, 3)), 1, rtol=1e-5)


@pytest.mark.parametrize(
    "size, line", [(4, [0.25, 0.75, 0.75, 0.25]), (5, [1 / 3, 2 / 3, 1, 2 / 3, 1 / 3])], ids=["twofold", "threefold"]
)
def test_bilinear(size, line):
    drawn = values((2, 1, size, size), type="bilinear")
    np.testing.assert_allclose(drawn, np.broadcast_to(np.outer(line, line), drawn.shape), rtol=1e-6)


@pytest.mark.parametrize("size", [2, 3, 6, 7, 10])
def test_bilinear_of_every_size_is_symmetric(size):
    drawn = values((1, 1, size, size), type="bilinear")[0, 0]
    np.testing.assert_allclose(drawn, drawn[::-1, ::-1], rtol=1e-6)
    assert drawn.max() == drawn[(size - 1) // 2, size // 2]


def test_scale_multiplies():
    np.testing.assert_allclose(values(type="msra", scale=0.5), values(type="msra") / 2)


def test_slope_behind_msra():
    slope, none = (values(type="msra", alpha=alpha) for alpha in (0.75, 0))
    np.testing.assert_allclose(slope, none / 1.25, rtol=1e-6)
    np.testing.assert_array_equal(values(type="xavier", alpha=0.75), values(type="xavier"))


def test_values_depend_on_seed_layer_and_index_alone():
    filler = proto.FillerParameter(type="gaussian")

    def drawn(layer, index, seed):
        return fill_parameter(Parameter((5,), filler, layer=layer, index=index), seed)

    first = drawn("conv", 0, 1)
    np.testing.assert_array_equal(first, drawn("conv", 0, 1))
    for other in (drawn("conv", 1, 1), drawn("conv2", 0, 1), drawn("conv", 0, 2)):
        assert not np.array_equal(first, other)


def test_no_filler_is_zero():
    assert not fill_parameter(Parameter((2, 3)), 1).any()


def test_errors():
    with pytest.raises(ConfigError, match=r"a.prototxt:3: unknown filler 'xavir'; did you mean 'xavier'\?"):
        fill((2,), proto.FillerParameter(type="xavir"), keyed_generator(1, "layer"), "a.prototxt:3")
    with pytest.raises(ConfigError, match=r"filler 'bilinear': expected .* square kernel; got 2 x 1 x 3 x 4"):
        values((2, 1, 3, 4), type="bilinear")
    with pytest.raises(ConfigError, match="filler 'uniform': expected min up to max; got 2 to 1"):
        values(type="uniform", min=2, max=1)


def test_gabor_filters_are_gratings():
    drawn = values((12, 3, 11, 11), type="gabor", std=0.01)
    np.testing.assert_allclose(drawn.mean(axis=(2, 3)), 0, atol=1e-8)
    np.testing.assert_allclose(drawn.std(axis=(2, 3)), 0.01, rtol=1e-5)
    assert np.array_equal(drawn[:, 0], drawn[:, 2]) and not np.allclose(drawn[0], drawn[1])
    spectrum = np.abs(np.fft.fft2(drawn[:, 0]))  # most of it lies at two opposite frequencies and their neighbours
    assert (spectrum.max(axis=(1, 2)) > 5 * np.median(spectrum, axis=(1, 2))).all()


@pytest.mark.parametrize("type", ["xavier", "msra", "gaussian"])
def test_a_single_value_is_one_output(type):
    assert np.isfinite(values((), type=type, std=1, sparse=1))


@pytest.mark.parametrize(
    "fields", [{"type": "uniform", "min": -3e38, "max": 3e38}, {"type": "constant", "value": 1, "scale": 3e38}]
)
def test_values_beyond_float32(fields):
    parameter = Parameter((2, 3), proto.FillerParameter(**{**fields, "value": 1e38}), layer="conv", index=1)
    with pytest.raises(ConfigError, match=r"layer 'conv', parameter 1: filler .* overflow"):
        fill_parameter(parameter, 1)


def test_numbers_of_a_file(tmp_path):
    path = tmp_path / "theta.txt"
    path.write_text("1 0 .5\n-2e-1 +3 4.\n")
    expected = np.array([[1, 0, 0.5], [-0.2, 3, 4]], np.float32)
    np.testing.assert_array_equal(values((2, 3), type="file", file=str(path)), expected)
    np.testing.assert_array_equal(values((6,), type="file", file=str(path), scale=2), 2 * expected.ravel())


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (b"1 2", "has 2 numbers, the blob 3"),
        (b"1 2 3 4", "has 4 numbers, the blob 3"),
        (b"1 two 3", "expected numbers, got 'two'"),
        (b"1 nan 3", "expected numbers, got 'nan'"),
        (b"1 -inf 3", "expected numbers, got '-inf'"),
        (b"1 1_0 3", "expected numbers, got '1_0'"),
        (b"1 1e39 3", "expected numbers, got '1e39'"),
        (b"1 \0 3", "expected numbers, got '"),
        (b"1 \xff 3", "cannot be read: byte 2 is not UTF-8; expected numbers"),
    ],
)
def test_files_without_as_many_numbers(tmp_path, content, wrong):
    path = tmp_path / "theta.txt"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as error:
        fill((3,), proto.FillerParameter(type="file", file=str(path)), keyed_generator(1, "layer", 0), "net:3:1")
    assert str(error.value).startswith(f"net:3:1: filler 'file': {path}: {wrong}")


def test_files_that_are_not_there(tmp_path):
    def error(**fields):
        with pytest.raises(ConfigError) as raised:
            fill((3,), proto.FillerParameter(type="file", **fields), keyed_generator(1, "layer", 0), "net:3:1")
        return raised.value

    absent = error(file=str(tmp_path / "none"))
    assert str(absent) == f"net:3:1: filler 'file': {tmp_path}/none: cannot be read: No such file or directory"
    assert absent.absent == "file"
    assert f"{tmp_path}: is a folder; expected numbers" in str(error(file=str(tmp_path)))
    assert str(error()) == "net:3:1: filler 'file': expected the name of a text of numbers in 'file'"
