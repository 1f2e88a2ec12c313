"""A single big picture: threads share its positions, strip by strip."""

import hashlib

import numpy as np
import pytest

from tests.layers.harness import digests_by_threads, inputs, run, set_top_diff

POSITIONS, CLASSES = (37, 61), 5
RANDOM = np.random.default_rng(41)
X, OTHER, GIVEN = RANDOM.normal(size=(3, 1, CLASSES, *POSITIONS)).astype(np.float32)
SHARES = RANDOM.uniform(0, 1, X.shape).astype(np.float32)
LABELS = RANDOM.integers(0, CLASSES, (1, 1, *POSITIONS)).astype(np.float32)
SOME = np.where(RANDOM.uniform(size=LABELS.shape) < 0.2, 255, LABELS).astype(np.float32)

CASES = [  # a layer, and its second bottom
    ("SoftmaxWithLoss", "loss_param { ignore_label: 255 }", SOME),
    ("SoftmaxWithLoss", "loss_param { ignore_label: 255 label_smoothing: 0.1 }", SOME),
    ("SoftmaxWithLoss", "", SHARES),
    ("FocalLoss", "loss_param { ignore_label: 255 }", SOME),
    ("SigmoidCrossEntropyLoss", "loss_param { normalization: VALID }", SHARES),
    ("SigmoidCrossEntropyLoss", "loss_param { normalization: VALID positive_weight: [1, 2, 3, 4, 5] }", SHARES),
    ("EuclideanLoss", "", OTHER),
    ("SmoothL1Loss", "", OTHER),
    ("LpqLoss", "lpq_loss_param { p: 0.4 q: 0.5 p_epsilon: 0.1 q_epsilon: 0.1 }", OTHER),
    ("Normalize", "norm_param { across_spatial: false scale_filler { value: 3 } }", None),
    ("Normalize", 'normalize_param { normalize_type: "L1" }', None),
    ("ChannelNorm", "", None),
]
WHOLE = [
    ("DiceLoss", "", LABELS),
    ("Normalize", "norm_param { across_spatial: true scale_filler { value: 3 } }", None),
]


def result(layer, params, second, x=X, given=GIVEN):
    """Returns the top and the gradient of x. `given` is the gradient of a top that is not a loss."""
    bottoms = {"x": x} if second is None else {"x": x, "t": second}
    names = " ".join(f'bottom: "{name}"' for name in bottoms)
    net = run(f'layer {{ name: "layer" type: "{layer}" {names} top: "y" {params} }}', **bottoms)
    y = net.blobs["y"].data.copy()
    if y.shape:
        set_top_diff(net, "y", given[:, : y.shape[1]])
    net.backward()
    return y, inputs(net)["x"].diff.copy()


def by_position(blob):
    """Returns the blob with positions as samples."""
    return np.moveaxis(blob, 1, 3).reshape(-1, blob.shape[1], 1, 1).copy()


@pytest.mark.parametrize("layer, params, second", CASES)
def test_positions_are_as_samples(layer, params, second):
    y, dx = result(layer, params, second)
    samples = result(
        layer, params, second if second is None else by_position(second), by_position(X), by_position(GIVEN)
    )
    # these losses are divided by the number of samples
    divided = X.size // CLASSES if layer in ("EuclideanLoss", "SmoothL1Loss", "LpqLoss") else 1
    np.testing.assert_allclose(by_position(y) if y.shape else y, samples[0] * divided, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(by_position(dx), samples[1] * divided, rtol=1e-4, atol=1e-6 * np.abs(dx).max())


def test_dice_loss():
    p, truth = SHARES[:, 1:], LABELS == np.arange(1, CLASSES).reshape(1, -1, 1, 1)
    common, both = (2 * (p * truth).sum((2, 3), np.float64), (p**2 + truth).sum((2, 3), np.float64))
    loss, dx = result("DiceLoss", "", LABELS, SHARES)
    np.testing.assert_allclose(loss, 1 - (common / both).mean(), rtol=1e-5)
    common, both = common[..., None, None], both[..., None, None]
    wanted = (2 * common * p / both**2 - 2 * truth / both) / (CLASSES - 1)
    np.testing.assert_allclose(dx[:, 1:], wanted, rtol=1e-4, atol=1e-8)
    assert not dx[:, 0].any()


def test_normalize_across_positions():
    y, dx = result(*WHOLE[1])
    length = np.sqrt((X**2).sum(dtype=np.float64))
    np.testing.assert_allclose(y, 3 * X / length, rtol=1e-5)
    along = (GIVEN * X).sum(dtype=np.float64)
    np.testing.assert_allclose(dx, 3 * (GIVEN / length - X * along / length**3), rtol=1e-4, atol=1e-7)


def digest():
    results = [each for case in CASES + WHOLE for each in result(*case)]
    return hashlib.sha256(b"".join(each.tobytes() for each in results)).hexdigest()


def test_results_do_not_depend_on_the_number_of_threads():
    assert len(digests_by_threads("tests.layers.test_big_pictures", "123")) == 1
