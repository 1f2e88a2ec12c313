"""The losses of happynear's fork: its formulas in NumPy, and its gradients, which are not all derivatives."""

import numpy as np
import pytest

from tests.layers.harness import check_gradients, error_of, net_text, run

PARAMS = {
    "GeneralTripletLoss": "general_triplet_loss_param",
    "GeneralContrastiveLoss": "general_contrastive_loss_param",
    "SoftContrastiveLoss": "soft_contrastive_loss_param",
}
LABELS = np.array([1, 0, 3, 2, 1, 0])
ROWS = np.arange(6)


def layer(kind, params="", tops='top: "y" top: "means"', bottoms=("d", "t")):
    names = " ".join(f'bottom: "{name}"' for name in bottoms)
    weights = "loss_weight: 1.5" + " loss_weight: 0" * (tops.count("top:") - 1)
    return f'layer {{ name: "layer" type: "{kind}" {names} {tops} {weights} {PARAMS[kind]} {{ {params} }} }}'


def distances():
    """Returns distances: those to the own class of all sizes, others on both sides of margins of about 1."""
    return np.random.default_rng(9).uniform(0.05, 2, (6, 4))


def others_of(values):
    mask = np.ones(values.shape, bool)
    mask[ROWS, LABELS] = False
    return mask


def triplet(d, margin=0.2, own_weight=1.0, other_weight=1.0, always=True, hardest=False, bound=np.inf):
    own, mask = d[ROWS, LABELS], others_of(d)
    gaps = np.where(mask, np.maximum(own[:, None] + margin - d, 0), 0)
    if hardest:
        gaps = np.where(gaps == gaps.max(1, keepdims=True), gaps, 0)
    gaps[own > bound] = 0
    slopes = -other_weight * (gaps > 0)
    slopes[ROWS, LABELS] = own_weight * (always | (gaps > 0).any(1) | (own > bound))
    return other_weight * gaps.sum() / 6, slopes / 6, [own.mean(), d[mask].mean()]


TRIPLETS = [
    ("", {}),
    ("margin: 0.6 add_center_loss: false", {"margin": 0.6, "always": False}),
    ("margin: 0.5 hardest_only: true", {"margin": 0.5, "hardest": True}),
    ("positive_first: true positive_upper_bound: 0.8", {"bound": 0.8}),
    ("positive_weight: 2 negative_weight: 0.5", {"own_weight": 2, "other_weight": 0.5}),
]


@pytest.mark.parametrize("params, options", TRIPLETS)
def test_general_triplet(params, options):
    check("GeneralTripletLoss", params, triplet(distances(), **options))


def contrastive(d, margins=(0, 1), weights=(1, 1), outlier=4.0, normalize=None, nearest=False, bound=np.inf, exp=False):
    own, mask = d[ROWS, LABELS], others_of(d)
    near = mask & (d < margins[1])
    terms = np.where(near, np.exp(-d) if exp else margins[1] - d, 0) * weights[1]
    slopes = -np.where(near, np.exp(-d) if exp else 1, 0) * weights[1]
    means = [np.minimum(np.maximum(own - margins[0], 0), outlier), np.where(near, margins[1] - d, 0)]
    if nearest:
        best = terms == np.where(near, terms, 0).max(1, keepdims=True)
        terms, slopes = terms * best, slopes * best
    terms[own > bound] = 0
    slopes[own > bound] = 0
    loss = terms.sum() + (means[0] * weights[0]).sum()
    if normalize is not None:
        sum_ = -slopes.sum() / normalize / 6
        slopes = slopes / sum_ if sum_ > weights[0] else slopes
    slopes[ROWS, LABELS] = np.where(((own > margins[0]) & (own < outlier)) | (own > bound), weights[0], 0)
    return loss / 6, slopes / 6, [means[0].mean(), means[1].sum() / 18]


CONTRASTIVES = [
    ("", {}),
    ("positive_margin: 0.3 negative_margin: 1.4 positive_weight: 2 negative_weight: 0.5",
     {"margins": (0.3, 1.4), "weights": (2, 0.5)}),
    ("positive_outlier_thresh: 0.9", {"outlier": 0.9}),
    ("max_negative_only: true", {"nearest": True}),
    ("exp_negative_weight: true", {"exp": True}),
    ("positive_first: true positive_upper_bound: 0.8", {"bound": 0.8}),
    ("normalize_negative: 0.25", {"normalize": 0.25}),
    ("normalize_negative: 25", {"normalize": 25}),
]  # fmt: skip


@pytest.mark.parametrize("params, options", CONTRASTIVES)
def test_general_contrastive(params, options):
    check("GeneralContrastiveLoss", params, contrastive(distances(), **options))


def soft(d, margins=(1, 1), weights=(1, 1), square=False):
    own, mask = d[ROWS, LABELS], others_of(d)
    near, gap = mask & (d < margins[1]), margins[1] - d
    means = [np.minimum(np.maximum(own - margins[0], 0), 4), np.where(near, gap, 0)]
    terms = np.where(near, np.exp(weights[1] * (gap**2 if square else gap)), 0)
    sums = terms.sum(1, keepdims=True)
    slopes = -weights[1] * terms * (gap if square else 1) / np.where(sums > 0, sums, 1)
    slopes[ROWS, LABELS] = np.where(own > margins[0], weights[0] * (own if square else 1), 0)
    loss = weights[0] * (means[0] ** (2 if square else 1)).sum() + np.log(sums[sums > 0]).sum()
    return loss / 6, slopes / 6, [means[0].mean(), means[1].sum() / 18]


@pytest.mark.parametrize(
    "params, options",
    [
        ("", {}),
        ("positive_margin: 0.4 negative_margin: 1.3 positive_weight: 2 negative_weight: 1.5 exponent_scale: 9",
         {"margins": (0.4, 1.3), "weights": (2, 1.5)}),
        ("positive_margin: 0.4 square: true", {"margins": (0.4, 1), "square": True}),
    ],
)  # fmt: skip
def test_soft_contrastive(params, options):
    check("SoftContrastiveLoss", params, soft(distances(), **options))


def check(kind, params, expected):
    loss, slopes, means = expected
    net = run(layer(kind, params), d=distances(), t=LABELS)
    np.testing.assert_allclose(net.blobs["y"].data, loss, rtol=1e-5)
    np.testing.assert_allclose(net.blobs["means"].data, means, rtol=1e-5)
    net.backward()
    np.testing.assert_allclose(net.blobs["d"].diff, 1.5 * slopes, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "kind, params",
    [
        ("GeneralTripletLoss", "hardest_only: true add_center_loss: false"),
        ("GeneralContrastiveLoss", "positive_margin: 0.3"),
        ("GeneralContrastiveLoss", "exp_negative_weight: true"),
        ("SoftContrastiveLoss", "positive_margin: 0.4 negative_weight: 1.5"),
    ],
)
def test_where_gradients_are_derivatives(kind, params):
    d = distances()
    for kink in (0.3, 0.4, 1):
        d[np.abs(d - kink) < 0.02] += 0.04
    text = net_text(layer(kind, params, 'top: "y"'), d=d.shape, t=LABELS.shape)
    check_gradients(text, {"d": d, "t": LABELS}, step=1e-3, tolerance=1e-2)


@pytest.mark.parametrize("kind", ["GeneralTripletLoss", "SoftContrastiveLoss"])
def test_weights_of_samples(kind):
    weights = np.array([1, 2, 0, 1, 0.5, 3])
    apart = [
        run(
            layer(kind, "", 'top: "y"', bottoms),
            **{"d": distances(), "t": LABELS, "w": weights},
        )
        if len(bottoms) == 3
        else run(layer(kind, "", 'top: "y"', bottoms), d=distances(), t=LABELS)
        for bottoms in (("d", "t", "w"), ("d", "t"))
    ]
    for net in apart:
        net.backward()
    weighted, plain = (net.blobs["d"].diff for net in apart)
    relative = weights / (weights.mean() if kind == "SoftContrastiveLoss" else 1)
    np.testing.assert_allclose(weighted, plain * relative[:, None], rtol=1e-5)


def test_errors():
    assert "expected no add_intra_mae, which happynear's fork has" in error_of(
        layer("GeneralContrastiveLoss", "add_intra_mae: true"), d=(6, 4), t=(6,)
    )
    assert "expected normalize_negative above 0, got -1" in error_of(
        layer("GeneralContrastiveLoss", "normalize_negative: -1"), d=(6, 4), t=(6,)
    )
    assert "expected distances (N, D) and N labels (and weights), got [(6, 4), (6, 2)]" in error_of(
        layer("GeneralTripletLoss"), d=(6, 4), t=(6, 2)
    )
