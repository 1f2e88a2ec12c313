"""Small nets of our own in the manner of public forks: SegNet, ENet, SphereFace and FlowNet 2. The training steps of
each are finite and lower the loss, and its gradients agree with differences of the loss."""

import numpy as np
import pytest

from engine import proto
from tests.layers.harness import check_gradients, inputs, make_net, net_text

XAVIER = 'weight_filler { type: "xavier" }'


def layer(kind, bottoms, tops, param="", name=""):
    names = [f'bottom: "{each}"' for each in bottoms.split()] + [f'top: "{each}"' for each in tops.split()]
    return f'layer {{ name: "{name or tops.split()[0]}" type: "{kind}" {" ".join(names)} {param} }}\n'


def convolution(bottom, top, outputs, more="kernel_size: 3 pad: 1", kind="Convolution"):
    return layer(kind, bottom, top, f"convolution_param {{ num_output: {outputs} {more} {XAVIER} }}")


def pooled(bottom, top):
    return layer("Pooling", bottom, f"{top} {top}_mask", "pooling_param { kernel_size: 2 stride: 2 }")


def normalised(bottom, top, outputs):
    """Returns SegNet's convolution and BN, with an activation that has no kinks, so that differences can be
    compared."""
    fillers = 'bn_param { scale_filler { type: "constant" value: 1 } shift_filler { type: "uniform" } }'
    return (
        convolution(bottom, f"{top}_conv", outputs)
        + layer("BN", f"{top}_conv", f"{top}_bn", fillers)
        + layer("TanH", f"{top}_bn", top)
    )


SEGMENTED = layer("SoftmaxWithLoss", "score label", "loss", "loss_param { ignore_label: 9 }")
SEGNET = (
    normalised("data", "c1", 8)
    + pooled("c1", "p1")
    + normalised("p1", "c2", 12)
    + pooled("c2", "p2")
    + layer("Upsample", "p2 p2_mask", "u2", "upsample_param { upsample_h: 5 upsample_w: 6 }")
    + normalised("u2", "d2", 8)
    + layer("Upsample", "d2 p1_mask", "u1", "upsample_param { scale: 2 pad_out_h: true }")
    + convolution("u1", "score", 3)
    + SEGMENTED
)
ENET = (
    convolution("data", "first", 5, "kernel_size: 3 pad: 1 stride: 2")
    + layer("Pooling", "data", "shrunk", "pooling_param { kernel_size: 2 stride: 2 }")
    + layer("Concat", "first shrunk", "begin")
    + layer("BN", "begin", "begin_bn", 'bn_param { slope_filler { type: "constant" value: 1 } }')
    + layer("PReLU", "begin_bn", "s")
    # A bottleneck that halves the plane, and keeps the places of its maxima.
    + pooled("s", "main")
    + convolution("s", "side1", 4, "kernel_size: 2 stride: 2 bias_term: false")
    + layer("PReLU", "side1", "side2")
    + convolution("side2", "side3", 4, "kernel_size: 3 pad: 2 dilation: 2")
    + convolution("side3", "side4", 8, "kernel_size: 1")
    + layer("SpatialDropout", "side4", "side5", "spatial_dropout_param { dropout_ratio: 0.2 }")
    + layer("Eltwise", "main side5", "down")
    # A bottleneck that brings the plane back to its size.
    + layer("Upsample", "down main_mask", "up", "upsample_param { scale: 2 }")
    + convolution("down", "back1", 4, "kernel_size: 1")
    + convolution("back1", "back2", 8, "kernel_size: 2 stride: 2", "Deconvolution")
    + layer("Eltwise", "up back2", "sum")
    + convolution("sum", "score", 3, "kernel_size: 2 stride: 2", "Deconvolution")
    + SEGMENTED
)
SPHEREFACE = (
    convolution("data", "c1", 6, "kernel_size: 3 stride: 2")
    + layer("PReLU", "c1", "r1")
    + convolution("r1", "c2", 6)
    + layer("PReLU", "c2", "r2")
    + layer("Eltwise", "r1 r2", "block")
    + layer("InnerProduct", "block", "feature", f"inner_product_param {{ num_output: 7 {XAVIER} }}")
    + layer("MarginInnerProduct", "feature label", "score lambda", "MARGIN")
    + layer("SoftmaxWithLoss", "score label", "loss")
)
MARGIN = f"margin_inner_product_param {{ num_output: 4 type: QUADRUPLE base: 3 gamma: 0.1 lambda_min: 1 {XAVIER} }}"
FLOWNET = (
    layer("Eltwise", "first", "a", "eltwise_param { operation: SUM coeff: 0.5 }")
    + layer("Mean", "second", "b", "mean_param { operation: SUBTRACT value: 0.1 input_scale: 0.5 }")
    # The same weights for both pictures, and their correlation.
    + convolution("a b", "fa fb", 6, "kernel_size: 3 stride: 2 pad: 1")
    + layer("TanH", "fa", "ga")
    + layer("TanH", "fb", "gb")
    + layer(
        "Correlation", "ga gb", "match", "correlation_param { kernel_size: 1 max_displacement: 2 pad: 2 stride_2: 1 }"
    )
    + convolution("ga", "own", 4, "kernel_size: 1")
    + layer("Concat", "own match", "both")
    + convolution("both", "coarse", 2)
    + layer("Downsample", "flow coarse", "wanted", name="shrink")
    + layer(
        "L1Loss",
        "coarse wanted",
        "coarse_loss",
        "loss_weight: 0.3 l1_loss_param { l2_per_location: true normalize_by_num_entries: true }",
    )
    + convolution("coarse", "fine", 2, "kernel_size: 4 stride: 2 pad: 1", "Deconvolution")
    + layer("Resample", "coarse", "large", "resample_param { width: 12 height: 10 type: LINEAR antialias: true }")
    + layer("Eltwise", "fine large", "found")
    + layer("LpqLoss", "found flow", "loss", "lpq_loss_param { p: 2 q: 0.4 normalize_by_num_entries: true }")
    # What the next net of a stack would read: the error of the warped second picture.
    + layer("FlowWarp", "b found", "warped")
    + layer("Eltwise", "a warped", "rest", "eltwise_param { coeff: 1 coeff: -1 }")
    + layer("ChannelNorm", "rest", "error")
    + layer("Reduction", "error", "error_sum", "reduction_param { operation: MEAN } loss_weight: 0.1")
)


def values_of(name):
    generator = np.random.default_rng(4)
    if name == "flownet":
        first, second = generator.normal(size=(2, 2, 3, 10, 12))
        return {"first": first, "second": second, "flow": generator.uniform(-1.5, 1.5, (2, 2, 10, 12))}
    shape = {"segnet": (3, 3, 9, 12), "enet": (3, 3, 8, 12), "sphereface": (8, 3, 9, 9)}[name]
    labels = (shape[0],) if name == "sphereface" else (shape[0], *shape[2:])
    label = generator.integers(0, 4 if name == "sphereface" else 3, labels)
    if name != "sphereface":
        label[:, 0] = 9
    return {"data": generator.normal(size=shape), "label": label}


NETS = {"segnet": SEGNET, "enet": ENET, "sphereface": SPHEREFACE.replace("MARGIN", MARGIN), "flownet": FLOWNET}


def text_of(text, values):
    """Returns the text without gradients of the inputs, as in training."""
    return net_text(text, **{name: each.shape for name, each in values.items()}).replace("force_backward: true", "")


def feed(net, values):
    for name, each in values.items():
        inputs(net)[name].set(each)


def total(net):
    return sum(weight * float(net.blobs[name].data) for _, name, weight in net.losses())


@pytest.mark.parametrize("name", NETS)
def test_training_steps(name):
    values = values_of(name)
    net = make_net(text_of(NETS[name], values))
    feed(net, values)
    losses = []
    for iteration in range(12):
        net.forward((iteration, 0, None))
        losses.append(total(net))
        net.backward()
        for tensors in net.params.values():
            for tensor in tensors:
                if tensor.diff is not None:
                    assert np.isfinite(tensor.diff.get()).all() and (iteration or tensor.diff.get().any())
                    tensor.set(tensor.get() - 0.02 * tensor.diff.get())
    assert np.isfinite(losses).all() and np.mean(losses[-3:]) < losses[0], losses
    assert all(np.isfinite(blob.data).all() for blob in net.blobs.values())


@pytest.mark.parametrize("name", ["segnet", "enet", "flownet"])
def test_gradients(name):
    values = values_of(name)
    check_gradients(text_of(NETS[name], values), values, step=5e-4, tolerance=1e-2, samples=12)


@pytest.mark.parametrize("kind", ["MarginInnerProduct", "LargeMarginInnerProduct"])
def test_gradients_of_a_face_net(kind):
    """L-Softmax is tested with its margin. A-Softmax is tested without one and with fixed weights, since with a margin
    SphereFace uses another gradient than the formula's (see test_margin_inner_product.py)."""
    margin = MARGIN.replace("QUADRUPLE", "SINGLE") + " param { lr_mult: 0 }"
    if kind == "LargeMarginInnerProduct":
        margin = MARGIN.replace("margin_inner", "largemargin_inner")
    text = SPHEREFACE.replace("MARGIN", margin).replace("MarginInnerProduct", kind)
    values = values_of("sphereface")
    # a longer step would move a bias of c2 across the kink of a PReLU
    check_gradients(text_of(text, values), values, step=1e-4, tolerance=1e-2, samples=12)


def test_the_memory_plan_changes_nothing():
    for name, text in NETS.items():
        values, results = values_of(name), []
        for keep_all in (True, False):
            net = make_net(text_of(text, values), proto.TRAIN, keep_all=keep_all)
            feed(net, values)
            net.forward()
            net.backward()
            results.append([each.diff.get() for tensors in net.params.values() for each in tensors if each.diff])
        for kept, planned in zip(*results, strict=True):
            np.testing.assert_array_equal(kept, planned, err_msg=name)
