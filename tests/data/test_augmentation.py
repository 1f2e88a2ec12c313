"""Augmentations drawn for each picture: colours, noise, lighting, RandAugment, mixup, CutMix. What is drawn depends on
seed, epoch and sample only."""

import numpy as np
import pytest
from google.protobuf import text_format

from engine import proto
from engine.data import open_data
from engine.data.decode import ImageError, as_picture
from engine.data.keyed_random import KeyedRandom
from engine.data.lighting import make_lighting
from engine.data.mix import Mix
from engine.data.rand_augment import make_rand_augment
from engine.data.retouch import retouch
from engine.data.transform import Transformer
from engine.errors import ConfigError, DataError
from tests.data.pictures import encoded_datum, raw_datum
from tests.data.test_picture import noisy

ALL = (
    "distort_param { brightness_prob: 0.5 brightness_delta: 32 hue_prob: 0.5 hue_delta: 18 saturation_prob: 0.5 "
    "saturation_lower: 0.5 saturation_upper: 1.5 } noise_param { prob: 0.3 gauss_blur: true saltpepper: true "
    "saltpepper_param { fraction: 0.02 } } rand_augment_param { } lighting_param { } erase_ratio: 0.3"
)
MIX = "mix_param { mixup_alpha: 0.2 cutmix_alpha: 1 num_classes: 10 }"


def transformer(text, phase=proto.TRAIN):
    return Transformer(text_format.Parse(text, proto.TransformationParameter()), phase, "net.prototxt:3:1")


def apply(text, pixels, index=0, phase=proto.TRAIN):
    made = transformer(text, phase)
    out = np.full(made.shape(pixels), np.nan, np.float32)
    made.apply(pixels, KeyedRandom(1, 0, index), out)
    return out


@pytest.fixture
def pixels():
    return noisy(1, 24, 30)[:, :, ::-1]


def batches(source, count=2, size=8, rank=0, ranks=1, start=0, threads=2):
    with source.batches(size, rank, ranks, start, threads) as found:
        return [[array.copy() for array in next(found).arrays["data"]] for _ in range(count)]


@pytest.fixture(params=["PNG", "JPEG", "raw"])
def source(request, make_lmdb, open_layer):
    def made(n):
        return (
            raw_datum(noisy(n, 24, 24), n % 10)
            if request.param == "raw"
            else encoded_datum(noisy(n, 24, 24), request.param, n % 10)
        )

    database = make_lmdb({f"{n:03d}": made(n) for n in range(22)})
    text = f"crop_size: 20 mirror: true {ALL} {MIX}"
    return open_layer(database, text, "batch_size: 8 shuffle: true", proto.TRAIN, seed=5)


def test_the_same_bits_on_any_number_of_ranks_and_threads_and_after_a_resume(source):
    whole = batches(source, 6, 8, threads=1)  # goes on beyond the end of an epoch
    for ranks, size in ((2, 4), (4, 2)):
        parts = [batches(source, 6, size, rank, ranks, threads=3) for rank in range(ranks)]
        for step, wanted in enumerate(whole):
            for top, values in enumerate(wanted):
                assert np.array_equal(np.concatenate([part[step][top] for part in parts]), values)
    resumed = batches(source, 2, 8, start=32)
    assert all(np.array_equal(a, b) for a, b in zip(resumed[0] + resumed[1], whole[4] + whole[5], strict=True))


def test_another_epoch_draws_anew(make_lmdb, open_layer):
    database = make_lmdb({f"{n}": raw_datum(noisy(n, 24, 24), n) for n in range(4)})
    for text in (ALL, MIX, "lighting_param { }", "rand_augment_param { }"):
        one, two = batches(open_layer(database, text, "batch_size: 4", proto.TRAIN), 2, 4)
        assert not np.array_equal(one[0], two[0])
    plain = batches(open_layer(database, f"{MIX} lighting_param {{ }}", "batch_size: 4", proto.TEST), 1, 4)
    assert np.array_equal(plain[0][0][0], noisy(0, 24, 24)[:, :, ::-1].transpose(2, 0, 1))
    assert plain[0][1].tolist() == [0, 1, 2, 3]


def test_changes_come_between_the_crop_and_the_mean(pixels):
    mean = "mean_value: 10 mean_value: 20 mean_value: 30 scale: 0.5"
    got = apply(f"crop_size: 8 {mean} noise_param {{ inverse: true }}", pixels, phase=proto.TEST)
    crop = 255 - pixels[8:16, 11:19].transpose(2, 0, 1).astype(np.float32)
    assert np.array_equal(got, (crop - np.array([10, 20, 30], np.float32).reshape(3, 1, 1)) * 0.5)


def test_a_changed_crop_is_of_the_resized_picture(pixels):
    text = "resize_param { height: 12 width: 20 } crop_size: 8"
    for index in range(5):
        turned = apply(f"{text} noise_param {{ inverse: true }}", pixels, index)
        assert np.array_equal(turned, 255 - apply(text, pixels, index))


def test_a_changed_crop_is_mirrored_and_keeps_its_mean_file(pixels, tmp_path):
    from engine.data.mean import write_mean

    mean = np.random.RandomState(0).rand(3, 24, 30).astype(np.float32) * 255
    write_mean(str(tmp_path / "mean"), mean)
    text = f'crop_size: 9 mirror: true mean_file: "{tmp_path}/mean"'
    for index in range(10):
        plain = apply(text, pixels, index)
        # 255 - p - mean, where plain is p - mean
        turned = apply(f"{text} noise_param {{ inverse: true }}", pixels, index)
        assert np.abs(plain + turned - (255 - 2 * cut(mean, text, plain, pixels))).max() < 1e-3


def cut(mean, text, plain, pixels):
    """Returns the window of the mean that was subtracted in `plain`."""
    whole = pixels.transpose(2, 0, 1) - mean
    for y in range(16):
        for x in range(22):
            for step in (1, -1):
                if np.array_equal(whole[:, y : y + 9, x : x + 9][:, :, ::step], plain):
                    return mean[:, y : y + 9, x : x + 9][:, :, ::step]
    raise AssertionError("no window")


def test_expansion_of_a_plain_picture(pixels):
    text = "mean_value: 4 mean_value: 5 mean_value: 6 expand_param { max_expand_ratio: 2 }"
    made = transformer(text)
    step = made._steps[0]
    sizes = set()
    for index in range(10):
        found = step(as_picture(pixels), KeyedRandom(1, 0, index)).pixels()
        sizes.add(found.shape[:2])
        same = [
            np.array_equal(found[y : y + 24, x : x + 30], pixels)
            for y in range(found.shape[0] - 23)
            for x in range(found.shape[1] - 29)
        ]
        assert any(same)
        assert (found == [4, 5, 6]).all(axis=2).sum() >= found.shape[0] * found.shape[1] - 24 * 30
    assert len(sizes) > 5


def test_lighting_moves_all_pixels_along_the_components(pixels):
    draw = make_lighting(text_format.Parse("deviation: 0.5", proto.LightingParameter()), None)
    moved = np.array([draw(KeyedRandom(1, 0, n)) for n in range(4000)])[:, ::-1] / 0.5  # in the order red, green, blue
    vectors = np.array([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]])
    wanted = vectors @ np.diag(np.array([55.46, 4.794, 1.148]) ** 2) @ vectors.T
    assert np.abs(np.cov(moved.T) / wanted - 1).max() < 0.1 and np.abs(moved.mean(axis=0)).max() < 3
    plain = pixels.transpose(2, 0, 1).astype(np.float32)
    for mean in ("", "mean_value: 100"):
        shift = apply(f"{mean} lighting_param {{ }}", pixels) - plain + (100 if mean else 0)
        assert np.ptp(shift, axis=(1, 2)).max() < 1e-4 and np.abs(shift).min() > 0
    own = "lighting_param { deviation: 1 eigenvalue: [9, 0, 0] eigenvector: [0, 0, 1, 0, 1, 0, 1, 0, 0] }"
    shift = (apply(own, pixels) - plain)[:, 0, 0]
    assert shift[0] != 0 and not shift[1:].any()  # the component is blue, which comes first in B, G, R
    grey = pixels[:, :, :1]
    assert np.array_equal(apply("lighting_param { }", grey)[0], grey[:, :, 0])
    with pytest.raises(ImageError, match="lighting_param moves the colours of 1 or 3 channels, got 9"):
        apply("lighting_param { }", np.concatenate([pixels] * 3, axis=2))


def test_rand_augment_draws_all_of_its_list():
    draw = make_rand_augment(proto.RandAugmentParameter(operations=3, magnitude=15), None)
    drawn = [draw(KeyedRandom(1, 0, n), 20, 40) for n in range(600)]
    assert {len(each) for each in drawn} == {0, 1, 2, 3}  # one change of the list does nothing
    kinds = [change for each in drawn for change in each]
    affine = {change[1:] for change in kinds if change[0] == 15}
    assert len({change[0] for change in kinds}) == 9 and len(affine) == 10  # five ways to move, both directions
    assert (1, 0, 9, 0, 1, 0) in affine and (1, 0, -9, 0, 1, 0) in affine  # half of 0.45 x 40
    for change in kinds[:50]:
        retouch(noisy(1, 20, 40).copy(), [change])
    turned = np.zeros((41, 41, 1), np.uint8)
    turned[20, 35] = 255
    quarter = make_rand_augment.__globals__["_turned"](90, 41, 41)
    retouch(turned, [quarter])
    assert turned[5, 20] == 255 or turned[35, 20] == 255


def test_beta_and_normal_numbers():
    for alpha in (0.1, 0.4, 1.0, 4.0):
        drawn = np.array([KeyedRandom(1, 0, n).beta(alpha) for n in range(4000)])
        assert 0 <= drawn.min() and drawn.max() <= 1 and abs(drawn.mean() - 0.5) < 0.03
        assert abs(drawn.var() * 4 * (2 * alpha + 1) - 1) < 0.1
    drawn = np.array([KeyedRandom(1, 0, n).normal() for n in range(4000)])
    assert abs(drawn.mean()) < 0.05 and abs(drawn.var() - 1) < 0.1 and abs((drawn**4).mean() - 3) < 0.6


def test_mixup_blends_pairs_and_their_labels(make_lmdb, open_layer):
    pictures = [noisy(n, 12, 12) for n in range(8)]
    database = make_lmdb({f"{n}": raw_datum(pictures[n], n) for n in range(8)})
    text = "mean_value: 20 scale: 0.1 mix_param { mixup_alpha: 1 num_classes: 9 }"
    data, labels = batches(open_layer(database, text, "batch_size: 8", proto.TRAIN), 1)[0]
    plain = (np.stack([p[:, :, ::-1].transpose(2, 0, 1) for p in pictures]).astype(np.float32) - 20) * np.float32(0.1)
    assert labels.shape == (8, 9)
    np.testing.assert_allclose(labels.sum(axis=1), 1, rtol=1e-6)
    for n in range(8):
        own, other = labels[n, n], labels[n, n ^ 1]
        assert own + other == pytest.approx(1)
        np.testing.assert_allclose(data[n], plain[n] * own + plain[n ^ 1] * other, rtol=1e-4, atol=1e-4)
    assert len(set(labels.max(axis=1).tolist())) > 4


def test_cutmix_takes_rectangles(make_lmdb, open_layer):
    database = make_lmdb({f"{n}": raw_datum(np.full((20, 20, 3), n, np.uint8), n) for n in range(8)})
    text = "mix_param { cutmix_alpha: 1 num_classes: 8 }"
    data, labels = batches(open_layer(database, text, "batch_size: 8", proto.TRAIN), 1)[0]
    for n in range(8):
        taken = data[n][0] == (n ^ 1)
        assert (taken | (data[n][0] == n)).all() and (data[n] == data[n][0]).all()
        assert labels[n, n ^ 1] == pytest.approx(taken.mean()) and labels[n, n] == pytest.approx(1 - taken.mean())
        rows, columns = np.nonzero(taken.any(axis=1))[0], np.nonzero(taken.any(axis=0))[0]
        assert taken.sum() == len(rows) * len(columns)
    assert 3 < sum((data[n][0] == (n ^ 1)).any() for n in range(8))


def test_cutmix_takes_any_place():
    mix = Mix(text_format.Parse("cutmix_alpha: 1", proto.MixParameter()), 2, 1, None)
    drawn = [mix._draw(KeyedRandom(1, 0, n), 4, 6)[1:] for n in range(1000)]
    assert all(0 <= top <= top + h <= 4 and 0 <= left <= left + w <= 6 for top, left, h, w in drawn)
    assert {top for top, _, h, _ in drawn if h == 1} == set(range(4))
    assert {left for _, left, _, w in drawn if w == 1} == set(range(6))


def test_several_labels_are_blended_as_they_are(make_lmdb, open_layer):
    items = {}
    for n in range(4):
        datum = proto.Datum.FromString(raw_datum(noisy(n, 12, 16)))
        datum.labels.extend([n, 1.0, 0.0])
        items[f"{n}"] = datum.SerializeToString()
    text = "mix_param { mixup_alpha: 1 }"
    _, labels = batches(open_layer(make_lmdb(items), text, "batch_size: 4", proto.TRAIN), 1, 4)[0]
    assert labels.shape == (4, 3) and (labels[:, 1] == 1).all() and not labels[:, 2].any()
    assert 0 < labels[0, 0] < 1 and 0 < labels[1, 0] < 1


def test_a_probability_and_a_choice_of_mixing():
    def kinds(text):
        mix = Mix(text_format.Parse(text, proto.MixParameter()), 2, 1, None)
        drawn = [mix._draw(KeyedRandom(1, 0, n), 10, 10) for n in range(400)]
        cut = sum(share == 1 for share, *_ in drawn)
        return cut, sum(share == 0 for share, *_ in drawn)

    cut, none = kinds("mixup_alpha: 1 cutmix_alpha: 1 cutmix_prob: 0.25 prob: 0.5")
    assert 160 < none < 240 and 30 < cut < 70
    assert kinds("cutmix_alpha: 1") == (400, 0)


@pytest.mark.parametrize(
    "text, words",
    [
        ("mix_param { }", "mix_param needs mixup_alpha, cutmix_alpha, or both"),
        ("mix_param { mixup_alpha: 1 }", "set num_classes to the number of classes"),
        ("mix_param { mixup_alpha: nan }", "mix_param.mixup_alpha: expected 0 to 100, got nan"),
        ("mix_param { cutmix_alpha: 1e9 }", r"mix_param.cutmix_alpha: expected 0 to 100, got 1e\+09"),
        ("mix_param { mixup_alpha: 1 prob: 2 }", "mix_param.prob: expected 0 to 1, got 2"),
        ("mix_param { mixup_alpha: 1 num_classes: 4000000000 }", "num_classes: expected 0 to 1048576, got 4000000000"),
        ("rand_augment_param { operations: 99 }", "operations: expected 1 to 16, got 99"),
        ("rand_augment_param { magnitude: 31 }", "magnitude: expected 0 to 30, got 31"),
        ("rand_augment_param { magnitude: nan }", "magnitude: expected 0 to 30, got nan"),
        ("lighting_param { deviation: -1 }", "lighting_param.deviation: expected 0 to 100, got -1"),
        ("lighting_param { eigenvalue: 1 }", "3 eigenvalue and 9 eigenvector fields, or none; got 1 and 9"),
        ("lighting_param { eigenvalue: [1, inf, 1] }", "eigenvector: expected -10000 to 10000, got inf"),
        ("noise_param { clahe: true }", "noise_param.clahe is not supported"),
        ("noise_param { prob: 2 }", "noise_param.prob: expected 0 to 1, got 2"),
        ("noise_param { jpeg: 101 }", "noise_param.jpeg: expected -1 to 100, got 101"),
        ("noise_param { jpeg: nan }", "noise_param.jpeg: expected -1 to 100, got nan"),
        ("noise_param { gaussian_std: 1 }", "noise_param.gaussian_std belongs to a layer, not to transform_param"),
        ("noise_param { saltpepper_param { fraction: 2 } }", "saltpepper_param.fraction: expected 0 to 1, got 2"),
        ("noise_param { saltpepper_param { value: [1, 2] } }", "no, 1 or 3 value fields; got 2"),
        ("distort_param { hue_prob: 2 }", "distort_param.hue_prob: expected 0 to 1, got 2"),
        ("expand_param { max_expand_ratio: 99 }", "expand_param.max_expand_ratio: expected 1 to 16, got 99"),
    ],
)
def test_parameters_that_cannot_be(make_lmdb, text, words):
    layer = proto.LayerParameter(name="data", type="Data")
    database = make_lmdb({"a": raw_datum(noisy(1, 12, 16))})
    text_format.Parse(f'data_param {{ source: "{database}" batch_size: 2 }} transform_param {{ {text} }}', layer)
    with pytest.raises(ConfigError, match=words) as caught:
        open_data(layer, proto.TRAIN, where="net.prototxt:1:1")
    assert str(caught.value).startswith("net.prototxt:1:1: ") and "\n" not in str(caught.value)


def test_pairs_and_labels_that_cannot_be(make_lmdb, open_layer):
    database = make_lmdb({f"{n}": raw_datum(noisy(n, 12, 16), 7) for n in range(4)})
    with pytest.raises(ConfigError, match="mix_param needs an even batch_size, for pairs of samples; got 3"):
        open_layer(database, MIX, "batch_size: 3", proto.TRAIN)
    few = open_layer(database, MIX.replace("10", "5"), "batch_size: 2", proto.TRAIN)
    with pytest.raises(DataError, match="key '0': its label 7 is not one of mix_param's 5 classes, 0 to 4"):
        batches(few, 1, 2)


def test_mixing_is_of_training_and_of_layers_that_can():
    assert transformer(MIX, proto.TEST).color is None
    with pytest.raises(ConfigError, match="mix_param is read by Data, ImageData and MultiLabelImageData only"):
        transformer(MIX)


def test_floats_have_no_colours(make_lmdb, open_layer):
    datum = proto.Datum(channels=3, height=4, width=4, float_data=np.zeros(48)).SerializeToString()
    source = open_layer(make_lmdb({"a": datum}), "noise_param { inverse: true }", "batch_size: 1")
    with pytest.raises(DataError, match="key 'a': an image of 3 float32 channels cannot be resized or change"):
        batches(source, 1, 1)
