"""caffe.Net does what pycaffe's scripts expect, compared with computation by hand."""

import copy
import gc
import pickle

import numpy as np
import pytest

import engine.caffe as caffe
from engine.caffe import mode
from engine.errors import ConfigError, DataError, EngineError, WeightsError
from tests.caffe.nets import DEPLOY, TRAINED, write


@pytest.fixture
def deploy(tmp_path):
    return caffe.Net(write(tmp_path, DEPLOY), caffe.TEST)


@pytest.fixture
def images():
    return np.random.default_rng(1).normal(size=(2, 3, 6, 6)).astype(np.float32)


def convolved(net, images):
    """Computes conv by its definition: 3 x 3, pad 1."""
    weights, bias = (blob.data for blob in net.params["conv"])
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, weights) + bias[:, None, None]


def probabilities(net, conv):
    weights, bias = (blob.data for blob in net.params["ip"])
    scores = np.maximum(conv, 0).mean((2, 3)) @ weights.T + bias
    exp = np.exp(scores - scores.max(1, keepdims=True))
    return exp / exp.sum(1, keepdims=True)


def test_names_and_shapes(deploy):
    assert deploy.name == "small"
    assert (deploy.inputs, deploy.outputs) == (["data"], ["prob"])
    assert list(deploy.blobs) == ["data", "conv", "pool", "ip", "prob"]
    assert deploy._layer_names == ["data", "conv", "relu", "pool", "ip", "prob"]
    assert [layer.type for layer in deploy.layers][:3] == ["Input", "Convolution", "ReLU"]
    assert deploy.layer_dict["ip"].blobs[0].shape == (4, 16)
    assert deploy.bottom_names["relu"] == deploy.top_names["relu"] == ["conv"]
    blob = deploy.blobs["data"]
    assert (blob.num, blob.channels, blob.height, blob.width, blob.count) == (2, 3, 6, 6, 216)
    assert (deploy.blobs["ip"].height, deploy.blobs["ip"].shape) == (1, (2, 4))
    names = [deploy._blob_names[i] for i in (*deploy._bottom_ids(3), *deploy._top_ids(3))]
    assert names == ["conv", "pool"]
    assert [blob.shape for blob in deploy.params["conv"]] == [(16, 3, 3, 3), (16,)]


def test_blobs_cannot_be_replaced(deploy):
    """An assignment would have no effect on the net, so it is refused."""

    def message(assign, *place):
        with pytest.raises(EngineError) as error:
            assign(*place, 3)
        return str(error.value)

    ip, relu = deploy.params["ip"], deploy.blobs["conv"]
    write = "cannot be replaced; write values:"
    first, second = (f"net.params['ip'][{number}]" for number in range(2))
    assert message(deploy.blobs.__setitem__, "conv") == (
        f"net.blobs['conv'] {write} net.blobs['conv'].data[...] = values"
    )
    assert message(deploy.params.__setitem__, "ip") == f"net.params['ip'] {write} {first}.data[...] = values"
    assert message(ip.__setitem__, -1) == f"{second} {write} {second}.data[...] = values"
    assert message(ip.__setitem__, slice(0, 2)) == f"{first} {write} {first}.data[...] = values"
    with pytest.raises(EngineError, match="cannot be replaced"):
        deploy.layer_dict["ip"].blobs[0] = 3
    assert deploy.params["ip"] is ip and deploy.blobs["conv"] is relu
    assert len(ip) == 2 and list(ip[:1]) == [ip[0]]
    for own in (deploy.params.copy(), copy.copy(deploy.params), dict(deploy.params), deploy.params | {}):
        own["ip"] = 3
        assert deploy.params["ip"] is ip
    assert list({"x": 1} | deploy.params) == ["x", *deploy.params]
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(EngineError, match=r"cannot be copied or pickled; copy their values"):
            copied(deploy.params)


def test_names_of_a_net_are_read_only_but_its_own(deploy):
    for name in ("params", "blobs", "layers"):
        with pytest.raises(AttributeError, match=name):
            setattr(deploy, name, {})
    deploy.name = "a script's"
    assert deploy.name == "a script's" and "a script's" in repr(deploy)


def test_what_is_written_into_data_is_used(deploy, images):
    deploy.blobs["data"].data[...] = images
    expected = probabilities(deploy, convolved(deploy, images))
    np.testing.assert_allclose(deploy.forward()["prob"], expected, atol=1e-5)
    np.testing.assert_allclose(deploy.forward(data=2 * images)["prob"].sum(1), 1, atol=1e-5)
    np.testing.assert_array_equal(deploy.blobs["data"].data, 2 * images)


def test_arrays_follow_runs(deploy, images):
    conv, prob = deploy.blobs["conv"].data, deploy.blobs["prob"].data  # conv has a layout of oneDNN's
    deploy.forward(data=images)
    first = prob.copy()
    np.testing.assert_allclose(conv, np.maximum(convolved(deploy, images), 0), atol=1e-5)
    deploy.forward(data=-images)
    np.testing.assert_allclose(conv, np.maximum(convolved(deploy, -images), 0), atol=1e-5)
    assert not np.allclose(prob, first)


def test_parameters_are_live(deploy, images):
    weights = deploy.params["conv"][0].data
    for _ in range(2):  # once while the array is held, once when it is not
        weights *= 2
        deploy.params["ip"][1].data[...] += 0.5
        gc.collect()
        expected = probabilities(deploy, convolved(deploy, images))
        np.testing.assert_allclose(deploy.forward(data=images)["prob"], expected, atol=1e-5)
    deploy.params["conv"][0].data[...] = 0
    assert not weights.any()
    assert deploy.forward(data=images, blobs=["conv"])["conv"].max() == 0


def test_a_layer_in_place_shows_what_the_last_run_left(deploy, images):
    expected = convolved(deploy, images)
    top = deploy.forward(end="conv", data=images)
    assert list(top) == ["conv"]
    np.testing.assert_allclose(top["conv"], expected, atol=1e-5)
    deploy.blobs["conv"].data[...] -= 1
    deploy.forward(start="relu", end="relu")
    np.testing.assert_allclose(deploy.blobs["conv"].data, np.maximum(expected - 1, 0), atol=1e-5)
    deploy.blobs["conv"].data[...] = -1  # relu reads and writes this blob
    assert deploy.forward(start="relu")["prob"].shape == (2, 4)
    assert not deploy.blobs["conv"].data.any()


def test_a_part_of_a_forward_leaves_the_blobs_above_it_alone(deploy, images):
    deploy.forward(data=images)
    held, after_relu = deploy.blobs["conv"].data, deploy.blobs["conv"].data.copy()
    assert (convolved(deploy, images) < 0).any()
    deploy.forward(end="data", data=2 * images)
    np.testing.assert_array_equal(held, after_relu)
    np.testing.assert_array_equal(deploy.blobs["conv"].data, after_relu)
    deploy.forward(start="conv", end="conv")
    np.testing.assert_allclose(held, convolved(deploy, 2 * images), atol=1e-5)


def test_backward_from_an_output(deploy, images):
    deploy.forward(data=images)
    rng = np.random.default_rng(2)
    seed = rng.normal(size=(2, 4)).astype(np.float32)
    gradient = deploy.backward(prob=seed)["data"].copy()
    step = 1e-2
    direction = rng.normal(size=images.shape).astype(np.float32)
    up = (deploy.forward(data=images + step * direction)["prob"] * seed).sum()
    down = (deploy.forward(data=images - step * direction)["prob"] * seed).sum()
    assert (gradient * direction).sum() == pytest.approx((up - down) / (2 * step), rel=2e-2, abs=1e-4)


def test_callbacks_before_and_after_each_layer(tmp_path, images):
    net = caffe.Net(write(tmp_path, DEPLOY.replace("force_backward: true", "")), caffe.TEST)
    expected = {name: values.copy() for name, values in net.forward(["conv", "ip"], data=images).items()}
    calls = []
    for when in ("before_forward", "after_forward", "before_backward", "after_backward"):
        getattr(net, when)(lambda layer, when=when: calls.append((when, layer)))
    for name, values in net.forward([*expected]).items():
        np.testing.assert_allclose(values, expected[name], atol=1e-6)
    assert calls == [(f"{when}_forward", layer) for layer in range(6) for when in ("before", "after")]
    calls.clear()
    net.backward(start="ip", end="pool")
    assert calls == [(f"{when}_backward", layer) for layer in (4, 3) for when in ("before", "after")]


def test_what_callbacks_write_is_used(deploy, images):
    def double(layer):
        if deploy._layer_names[layer] == "conv":
            deploy.blobs["conv"].data[...] *= 2

    def halve(layer):
        if deploy._layer_names[layer] == "relu":
            deploy.blobs["conv"].diff[...] /= 2

    expected = probabilities(deploy, 2 * convolved(deploy, images))
    deploy.after_forward(double)
    np.testing.assert_allclose(deploy.forward(data=images)["prob"], expected, atol=1e-5)
    gradient = deploy.backward(prob=np.eye(2, 4))["data"].copy()
    assert gradient.any()
    deploy.after_backward(halve)
    np.testing.assert_allclose(deploy.backward()["data"], gradient / 2, rtol=1e-4, atol=1e-6)


def test_callbacks_do_not_make_more_passes_of_one(tmp_path):
    """Dropout masks and the place of data layers are the same as without callbacks."""
    text = """layer { name: "data" type: "MemoryData" top: "data" top: "label"
                memory_data_param { batch_size: 1 channels: 100 height: 1 width: 1 } }
              layer { name: "drop" type: "Dropout" bottom: "data" top: "drop" }"""
    nets = [caffe.Net(write(tmp_path, text), caffe.TRAIN) for _ in range(2)]
    nets[1].before_forward(lambda layer: None)
    for net in nets:
        net.set_input_arrays(np.arange(300, dtype=np.float32).reshape(3, 100, 1, 1), np.zeros(3, np.float32))
    for _ in range(2):
        one, other = (net.forward()["drop"].copy() for net in nets)
        np.testing.assert_array_equal(one, other)


def test_a_callback_that_raises_ends_one_pass(tmp_path):
    text = """layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 100 } } }
              layer { name: "drop" type: "Dropout" bottom: "data" top: "drop" }
              layer { name: "power" type: "Power" bottom: "drop" top: "power" }"""
    nets = [caffe.Net(write(tmp_path, text), caffe.TRAIN) for _ in range(2)]
    nets[1].after_forward(lambda layer: 1 / 0 if stop and layer == 2 else None)
    for stop in (False, True, False):
        for net in nets:
            net.blobs["data"].data[...] = 1
        one = nets[0].forward()["power"].copy()
        if stop:
            with pytest.raises(ZeroDivisionError):
                nets[1].forward()
        else:
            np.testing.assert_array_equal(nets[1].forward()["power"], one)


def test_arrays_of_a_blob_in_place_are_one_each(deploy, images):
    data, diff = deploy.blobs["conv"].data, deploy.blobs["conv"].diff
    for given in (images, -images):
        before = deploy.forward(end="conv", data=given)["conv"].copy()
        np.testing.assert_array_equal(data, before)
        deploy.forward(start="relu")
        np.testing.assert_array_equal(data, np.maximum(before, 0))
        diff[...] = 3
        deploy.backward(start="relu", end="conv")
        np.testing.assert_array_equal(diff, 3 * (before > 0))


def test_a_blob_behind_a_dropout_is_another_one(tmp_path):
    text = DEPLOY.replace('bottom: "ip" top: "prob"', 'bottom: "drop" top: "prob"').replace(
        'layer { name: "prob"', 'layer { name: "drop" type: "Dropout" bottom: "ip" top: "drop" } layer { name: "prob"'
    )
    net = caffe.Net(write(tmp_path, text), caffe.TEST)
    probabilities = net.forward(data=np.random.default_rng(1).normal(size=(2, 3, 6, 6)))["prob"].copy()
    net.blobs["drop"].data[...] = 0
    np.testing.assert_array_equal(net.forward(start="prob")["prob"], 0.25)
    np.testing.assert_array_equal(net.forward(start="drop")["prob"], probabilities)
    net.backward(prob=np.eye(2, 4))
    given = net.blobs["drop"].diff.copy()
    assert given.any()
    net.blobs["ip"].diff[...] = 0
    np.testing.assert_array_equal(net.blobs["drop"].diff, given)


def test_a_layer_in_place_on_a_data_layer_s_top(tmp_path):
    net = caffe.Net(
        write(
            tmp_path,
            """layer { name: "data" type: "MemoryData" top: "data" top: "label"
                 memory_data_param { batch_size: 2 channels: 1 height: 1 width: 2 } }
               layer { name: "double" type: "Power" bottom: "data" top: "data" power_param { scale: 2 } }""",
        ),
        caffe.TRAIN,
    )
    images = np.arange(8, dtype=np.float32).reshape(4, 1, 1, 2)
    net.set_input_arrays(images, np.zeros(4, np.float32))
    for begin in (0, 2, 0):
        np.testing.assert_array_equal(net.forward()["data"], 2 * images[begin : begin + 2])


def test_backward_from_a_blob_in_the_middle(deploy, images):
    """As "deep dreams" do, the script sets the gradient of a hidden blob and reads that of the input."""
    for _ in range(2):  # the second time the diff shows the other version of the blob in place
        deploy.forward(data=images, end="relu")
        deploy.blobs["conv"].diff[...] = 1
        positive = deploy.blobs["conv"].data > 0
        deploy.clear_param_diffs()
        result = deploy.backward(start="relu", end="conv")
        assert list(result) == ["data"]
        np.testing.assert_array_equal(deploy.blobs["conv"].diff, positive)
        np.testing.assert_allclose(deploy.params["conv"][1].diff, positive.sum((0, 2, 3)), rtol=1e-5)
    deploy.blobs["conv"].diff[...] = 1
    deploy.backward(start="conv")
    np.testing.assert_allclose(deploy.params["conv"][1].diff, positive.sum((0, 2, 3)) + 72, rtol=1e-5)


def test_gradients_of_parameters_add_up(tmp_path):
    net = caffe.Net(write(tmp_path, TRAINED), caffe.TRAIN)
    given = {"data": np.ones((4, 5), np.float32), "label": np.arange(4) % 3}
    net.forward(**given)
    net.backward()
    once = net.params["ip"][0].diff.copy()
    assert once.any()
    assert not net.params["fixed"][0].diff.any()  # lr_mult 0, as in Caffe
    assert not net.blobs["data"].diff.any()  # no force_backward
    net.backward()
    np.testing.assert_allclose(net.params["ip"][0].diff, 2 * once, rtol=1e-5)
    net.clear_param_diffs()
    assert not net.params["ip"][0].diff.any()
    net.backward()
    np.testing.assert_allclose(net.params["ip"][0].diff, once, rtol=1e-5)
    assert net.blob_loss_weights["loss"] == 1
    assert net.blob_loss_weights["ip"] == 0


def test_the_test_phase_has_a_backward(tmp_path):
    net = caffe.Net(write(tmp_path, TRAINED), caffe.TEST)
    assert net.outputs == ["accuracy", "loss"]
    assert "fixed_fixed_split" not in net._layer_names
    net.forward(data=np.ones((4, 5)), label=np.zeros(4))
    net.backward()
    assert net.params["ip"][0].diff.any()


@pytest.mark.parametrize("force", ["", "force_backward: true"])
def test_the_gradient_of_a_loss_is_its_weight(force, tmp_path):
    text = TRAINED.replace('top: "loss" }', 'top: "loss" loss_weight: 3 }') + force
    net = caffe.Net(write(tmp_path, text), caffe.TRAIN)
    net.forward(data=np.ones((4, 5)), label=np.zeros(4))
    net.backward()
    assert net.blobs["loss"].diff == 3
    assert net.blobs["data"].diff.any() == bool(force)


@pytest.mark.parametrize("force", ["", "force_backward: true"])
def test_losses_that_are_read_on_count_once(force, tmp_path):
    losses = (
        TRAINED.replace('top: "loss" }', 'top: "loss" loss_weight: 1 }')
        + """
        layer { name: "more" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "more" loss_weight: 2 }"""
    )
    total = 'layer { name: "total" type: "Eltwise" bottom: "loss" bottom: "more" top: "total" }'
    gradients = []
    for text in (losses, losses + total):
        net = caffe.Net(write(tmp_path, text + force), caffe.TRAIN)
        net.params["ip"][0].data[...] = np.arange(15).reshape(3, 5) / 15
        net.forward(data=np.arange(20).reshape(4, 5) / 20, label=np.zeros(4))
        net.backward()
        gradients.append(net.params["ip"][0].diff.copy())
    assert gradients[0].any()
    np.testing.assert_allclose(gradients[1], gradients[0], rtol=1e-5)


def test_reshape(deploy, images):
    expected = probabilities(deploy, convolved(deploy, images))
    deploy.params["conv"][0].data[...] *= 3
    deploy.params["conv"][0].data[...] /= 3
    blob = deploy.blobs["data"]
    blob.reshape(1, 3, 6, 6)
    assert blob.data.shape == blob.shape == (1, 3, 6, 6)
    blob.data[...] = images[1:]
    np.testing.assert_allclose(deploy.forward()["prob"], expected[1:], atol=1e-5)
    blob.reshape(*(4, 3, 8, 9))
    deploy.reshape()
    assert deploy.blobs["conv"].data.shape == (4, 16, 8, 9)
    assert deploy.blobs["prob"].shape == (4, 4)
    blob.reshape(2, 3, 6, 6)
    np.testing.assert_allclose(deploy.forward(data=images)["prob"], expected, atol=1e-5)
    deploy.backward(prob=np.ones((2, 4)))
    with pytest.raises(EngineError, match="only inputs"):
        deploy.blobs["conv"].reshape(1, 1)


def test_values_stay_where_an_input_is_reshaped(deploy, images):
    """As in Caffe, a blob keeps its memory when it is reshaped, unless it becomes larger than ever. So what was written
    counts."""
    expected = probabilities(deploy, convolved(deploy, images))
    blob = deploy.blobs["data"]
    blob.data[...] = images
    blob.reshape(1, 3, 6, 6)
    np.testing.assert_allclose(deploy.forward()["prob"], expected[:1], atol=1e-5)
    blob.reshape(1, 3, 4, 9)
    np.testing.assert_array_equal(blob.data, images[:1].reshape(1, 3, 4, 9))
    blob.data[...] = 0
    blob.reshape(2, 3, 6, 6)
    np.testing.assert_allclose(deploy.forward()["prob"][1], expected[1], atol=1e-5)
    assert not blob.data[0].any()
    blob.reshape(3, 3, 6, 6)
    assert not blob.data.any()


def test_the_gradient_of_an_input_has_its_new_shape(deploy, images):
    deploy.forward(data=images)
    deploy.blobs["data"].reshape(1, 3, 6, 6)
    deploy.blobs["data"].data[...] = images[1:]
    assert deploy.blobs["data"].diff.shape == (1, 3, 6, 6)
    np.testing.assert_array_equal(deploy.blobs["data"].data, images[1:])


@pytest.mark.parametrize("shape", [(2.5, 3, 6, 6), (-1, 3, 6, 6), ((1, 3, 6, "6"),)])
def test_axes_are_whole_numbers(shape, deploy):
    with pytest.raises(EngineError, match="whole numbers from 0 on, got"):
        deploy.blobs["data"].reshape(*shape)
    deploy.blobs["data"].reshape(2.0, 3, np.int64(6), 6)  # scripts for Python 2 divide sizes
    assert deploy.blobs["data"].shape == (2, 3, 6, 6)


def test_a_net_goes_on_after_an_input_without_rows(deploy, images):
    before = deploy.forward(data=images)["prob"].copy()
    deploy.blobs["data"].reshape(0, 3, 6, 6)
    with pytest.raises(ConfigError, match=r"got \(0, 3, 6, 6\); where there is nothing, give one dummy row"):
        deploy.forward()
    for rows in (2, 1):
        deploy.blobs["data"].reshape(rows, 3, 6, 6)
        np.testing.assert_allclose(deploy.forward(data=images[:rows])["prob"], before[:rows], rtol=1e-5)


def test_an_array_from_before_a_reshape_is_the_net_s(deploy, images):
    expected = probabilities(deploy, convolved(deploy, images))
    deploy.blobs["data"].reshape(1, 3, 6, 6)
    data = deploy.blobs["data"].data
    for image, row in zip(images, expected):
        data[...] = image
        np.testing.assert_allclose(deploy.forward()["prob"][0], row, atol=1e-5)


def test_arrays_outlive_a_reshape_that_leaves_their_shape(tmp_path):
    text = DEPLOY.replace("dim: 6 dim: 6", "dim: 7 dim: 7")
    for force in (True, False):  # all blobs are kept, or the net is fused
        path = write(tmp_path, text if force else text.replace("force_backward: true", ""))
        net, other = caffe.Net(path, caffe.TEST), caffe.Net(path, caffe.TEST)
        other.blobs["data"].reshape(2, 3, 9, 5)
        held = {name: net.blobs[name].data for name in ("prob", "ip", "pool")[: 3 if force else 1]}
        gradient = net.blobs["ip"].diff if force else None
        for size in ((7, 7), (9, 5), (7, 7)):
            net.blobs["data"].reshape(2, 3, *size)
            other.blobs["data"].reshape(2, 3, *size)
            image = np.random.default_rng(sum(size)).normal(size=(2, 3, *size))
            expected = {name: values.copy() for name, values in other.forward([*held], data=image).items()}
            net.forward(data=image)
            for name, array in held.items():
                np.testing.assert_allclose(array, expected[name], atol=1e-6)
            if gradient is not None:
                net.backward(prob=image[:, 0, 0, :4])
                assert gradient.any() and (gradient == net.blobs["ip"].diff).all()
                gradient[...] = 0


def test_arrays_of_blobs_that_are_one_memory_outlive_a_reshape(tmp_path):
    power = 'layer { name: "%s" type: "Power" bottom: "%s" top: "%s" power_param { scale: 2 } }'
    net = caffe.Net(
        write(
            tmp_path,
            """force_backward: true
               layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 6 } } }
               layer { name: "sum" type: "Reduction" bottom: "x" top: "sum" reduction_param { axis: 1 } }
               layer { name: "flat" type: "Flatten" bottom: "sum" top: "flat" flatten_param { axis: 0 } }
               layer { name: "drop" type: "Dropout" bottom: "flat" top: "drop" }"""
            + power % ("a", "drop", "a")
            + power % ("b", "flat", "b"),
        ),
        caffe.TEST,
    )
    held = {name: (net.blobs[name].data, net.blobs[name].diff) for name in list(net.blobs)[1:]}
    for size in (6, 3, 6):
        net.blobs["x"].reshape(2, size)
        net.forward(x=np.full((2, size), size))
        net.backward(a=[1, 2], b=[size, 3])
        gradient = np.array([2 + 2 * size, 10])
        for name, factor, diff in (("sum", 1, gradient), ("flat", 1, gradient), ("drop", 1, [2, 4]), ("a", 2, [1, 2])):
            np.testing.assert_array_equal(held[name][0], np.full(2, factor * size**2))
            np.testing.assert_array_equal(held[name][1], diff)


def test_reshape_that_the_weights_do_not_fit(tmp_path):
    net = caffe.Net(write(tmp_path, TRAINED), caffe.TRAIN)
    net.blobs["data"].reshape(4, 6)
    with pytest.raises(ConfigError, match=r":5:1: layer 'ip', parameter 0: .* it would be 3 x 6, but it is 3 x 5; "):
        net.forward()


@pytest.mark.parametrize("force", [True, False])
@pytest.mark.parametrize(
    "pooling, complaint",
    [("kernel_size: 6", ":8:1: layer 'pool' "), ("kernel_size: 1", ":9:1: layer 'ip', ")],
)
def test_layers_above_the_end_need_not_fit(pooling, complaint, force, tmp_path):
    """DeepDream runs the lower layers of a net for pictures of one size with other sizes. `other` takes all sizes."""
    text = DEPLOY if force else DEPLOY.replace("force_backward: true", "")
    net = caffe.Net(write(tmp_path, text.replace("global_pooling: true", pooling)), caffe.TEST)
    other = caffe.Net(write(tmp_path, text), caffe.TEST)
    for mine, its in zip(net.params["conv"], other.params["conv"]):
        its.data[...] = mine.data
    images = np.random.default_rng(2).normal(size=(2, 3, 6, 6))
    prob = net.forward(data=images)["prob"]
    before = prob.copy()
    for size in (5, 4):
        conv = {}
        for each in (net, other):
            each.blobs["data"].reshape(2, 3, size, size)
            conv[each] = each.forward(end="relu", data=images[:, :, :size, :size])["conv"]
            each.blobs["conv"].diff[...] = np.arange(size)
            each.backward(start="relu")
        np.testing.assert_allclose(conv[net], conv[other], atol=1e-6)
        np.testing.assert_allclose(net.blobs["data"].diff, other.blobs["data"].diff, atol=1e-6)
        assert net.blobs["data"].diff.any() == force
        for array in (prob, net.blobs["prob"].data):  # both arrays are as they were
            np.testing.assert_array_equal(array, before)
        for run in (net.reshape, net.forward, net.backward):
            with pytest.raises(ConfigError, match=complaint):
                run()
    net.blobs["data"].reshape(1, 3, 4, 4)
    with pytest.raises(ConfigError, match=complaint):
        net.reshape()
    net.blobs["data"].reshape(2, 3, 6, 6)
    prob[...] = 0
    np.testing.assert_allclose(net.forward(data=images)["prob"], before, atol=1e-6)
    np.testing.assert_array_equal(prob, net.blobs["prob"].data)


def test_a_backward_with_callbacks_changes_nothing_where_a_layer_does_not_fit(tmp_path):
    net = caffe.Net(write(tmp_path, DEPLOY.replace("global_pooling: true", "kernel_size: 6")), caffe.TEST)
    calls = []
    net.before_backward(calls.append)
    net.blobs["data"].reshape(2, 3, 5, 5)
    net.forward(end="relu")
    net.blobs["ip"].diff[...] = 1
    with pytest.raises(ConfigError, match="layer 'pool' "):
        net.backward()
    assert not calls and not any(param.diff.any() for param in net.params["ip"])


def test_weights_of_files(deploy, images, tmp_path):
    expected = deploy.forward(data=images)["prob"].copy()
    deploy.params["ip"][1].data[...] = [1, 2, 3, 4]
    other = deploy.forward()["prob"].copy()
    model = str(tmp_path / "small.caffemodel")
    deploy.save(model)
    text = write(tmp_path, DEPLOY)
    for net in (
        caffe.Net(text, model, caffe.TEST),
        caffe.Net(text, caffe.TEST, weights=model),
        caffe.Net(text, weights=model, phase=caffe.TEST),
    ):
        np.testing.assert_allclose(net.forward(data=images)["prob"], other, atol=1e-6)
    fresh = caffe.Net(text, caffe.TEST)
    held = fresh.params["ip"][1].data
    np.testing.assert_allclose(fresh.forward(data=images)["prob"], expected, atol=1e-6)
    fresh.copy_from(model)
    np.testing.assert_array_equal(held, [1, 2, 3, 4])
    with pytest.raises(WeightsError, match="cannot be read"):
        fresh.copy_from(str(tmp_path / "missing"))
    with pytest.raises(TypeError, match="phase"):
        caffe.Net(text)


def test_weights_of_another_net_leave_a_warning(tmp_path, deploy, caplog):
    """As in Caffe, the weights are loaded all the same."""
    other = str(tmp_path / "other.caffemodel")
    renamed = DEPLOY.replace('"conv"', '"conv_2"').replace('"ip"', '"ip_2"')
    caffe.Net(write(tmp_path, renamed, "other.prototxt"), caffe.TEST).save(other)
    with caplog.at_level("WARNING", "engine"):
        deploy.copy_from(other)
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{other}: none of its layers is one of the net's, which has conv, ip: ")


def test_weights_in_hdf5(deploy, tmp_path):
    pytest.importorskip("h5py")
    path = str(tmp_path / "weights")
    deploy.params["conv"][1].data[...] = 7
    deploy.save_hdf5(path)
    deploy.params["conv"][1].data[...] = 0
    deploy.load_hdf5(path)
    np.testing.assert_array_equal(deploy.params["conv"][1].data, 7)


def test_share_with(deploy, images, tmp_path):
    other = caffe.Net(write(tmp_path, DEPLOY), caffe.TEST)
    deploy.params["ip"][1].data[...] = [1, 2, 3, 4]
    other.share_with(deploy)
    np.testing.assert_array_equal(other.params["ip"][1].data, [1, 2, 3, 4])
    other.params["ip"][1].data[...] = 0
    expected = deploy.forward(data=images)["prob"]
    np.testing.assert_array_equal(deploy.params["ip"][1].data, 0)
    np.testing.assert_allclose(other.forward(data=images)["prob"], expected, atol=1e-6)
    weights = deploy.params["conv"][0].data  # in a layout of oneDNN's
    weights *= 2
    result = other.forward()["prob"].copy()
    assert not np.allclose(result, expected)
    np.testing.assert_allclose(result, probabilities(deploy, convolved(deploy, images)), atol=1e-5)
    other.params["conv"][0].data[...] = 3
    np.testing.assert_array_equal(weights, 3)


def test_share_with_leaves_inputs_and_gradients_alone(deploy, images, tmp_path):
    text = write(tmp_path, DEPLOY)
    other = caffe.Net(text, caffe.TEST)
    data = other.blobs["data"].data
    other.share_with(deploy)
    data[...] = images
    np.testing.assert_allclose(other.forward()["prob"], deploy.forward(data=images)["prob"], atol=1e-6)
    mine, its = (net.params["conv"][0].diff for net in (deploy, other))
    other.backward(prob=np.eye(2, 4))
    assert its.any() and not mine.any()
    once = its.copy()
    deploy.clear_param_diffs()
    deploy.backward(prob=np.eye(2, 4))
    np.testing.assert_allclose(mine, once, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(its, once)
    reshaped = caffe.Net(text, caffe.TEST)
    reshaped.blobs["data"].reshape(1, 3, 6, 6)
    one = reshaped.blobs["data"].data
    reshaped.share_with(other)
    one[...] = images[0]
    np.testing.assert_allclose(reshaped.forward()["prob"][0], deploy.forward()["prob"][0], atol=1e-6)


def test_share_with_leaves_layers_alone_that_the_other_does_not_have(deploy, images, tmp_path):
    other = caffe.Net(write(tmp_path, DEPLOY.replace('name: "conv"', 'name: "first"')), caffe.TEST)
    weights, bias = (blob.data for blob in deploy.params["conv"])  # the weights have a layout of oneDNN's
    gradient = deploy.params["conv"][0].diff
    weights *= 2
    bias[...] = gradient[...] = 1
    before = weights.copy()
    other.params["ip"][1].data[...] = [1, 2, 3, 4]
    deploy.share_with(other)
    np.testing.assert_array_equal(weights, before)
    assert (bias == 1).all() and (gradient == 1).all()
    np.testing.assert_array_equal(deploy.params["ip"][1].data, [1, 2, 3, 4])
    weights *= 2
    expected = probabilities(deploy, convolved(deploy, images))
    np.testing.assert_array_equal(deploy.params["conv"][0].data, 2 * before)
    np.testing.assert_allclose(deploy.forward(data=images)["prob"], expected, atol=1e-5)
    deploy.backward(prob=np.eye(2, 4))
    assert not (gradient == 1).any()
    np.testing.assert_array_equal(gradient, deploy.params["conv"][0].diff)


def test_gradients_from_before_share_with_stay_live(deploy, images, tmp_path):
    weights, bias = (blob.diff for blob in deploy.params["conv"])  # the weights have a layout of oneDNN's
    weights[...] = bias[...] = 1
    deploy.share_with(caffe.Net(write(tmp_path, DEPLOY), caffe.TEST))
    gc.collect()
    deploy.forward(data=images)
    assert (weights == 1).all() and (bias == 1).all()
    deploy.backward(prob=np.eye(2, 4))
    for held, blob in zip((weights, bias), deploy.params["conv"]):
        np.testing.assert_array_equal(held, blob.diff)
        assert not (held == 1).any()


def test_all_samples(deploy):
    images = np.random.default_rng(3).normal(size=(5, 3, 6, 6)).astype(np.float32)
    expected = probabilities(deploy, convolved(deploy, images))
    result = deploy.forward_all(data=images, blobs=["pool"])
    np.testing.assert_allclose(result["prob"], expected, atol=1e-5)
    assert result["pool"].shape == (5, 16, 1, 1)
    blobs, diffs = deploy.forward_backward_all(data=images, prob=np.ones((5, 4)), diffs=["conv"])
    np.testing.assert_allclose(blobs["prob"], expected, atol=1e-5)
    assert (diffs["data"].shape, diffs["conv"].shape) == (images.shape, (5, 16, 6, 6))


def test_no_samples(deploy):
    """The results are empty arrays, as in pycaffe. Running a batch of zeros instead would add to gradients."""
    nothing = np.zeros((0, 3, 6, 6), np.float32)
    result = deploy.forward_all(data=nothing, blobs=["pool"])
    assert {name: array.shape for name, array in result.items()} == {"prob": (0, 4), "pool": (0, 16, 1, 1)}
    blobs, diffs = deploy.forward_backward_all(data=nothing, prob=np.zeros((0, 4)), diffs=["conv"])
    assert {name: array.shape for name, array in blobs.items()} == {"prob": (0, 4)}
    assert {name: array.shape for name, array in diffs.items()} == {"data": (0, 3, 6, 6), "conv": (0, 16, 6, 6)}
    assert not deploy.params["conv"][0].diff.any()


def test_layers_by_number(tmp_path):
    net = caffe.Net(write(tmp_path, TRAINED), caffe.TRAIN)
    assert [net._blob_names[i] for i in (*net._inputs, *net._outputs)] == ["data", "label", "loss"]
    assert net._blobs[1] is net.blobs["label"] and net._blob_loss_weights == [0, 0, 0, 0, 1]
    net.blobs["data"].data[...] = 1
    net._forward(0, 3)
    assert not net.blobs["loss"].data
    assert net._forward(4, 4) == net.blobs["loss"].data != 0
    net._backward(4, 0)
    assert net.params["ip"][0].diff.any()


def test_wrong_inputs(deploy):
    with pytest.raises(ValueError, match="expected arrays for the inputs data, got image"):
        deploy.forward(image=np.zeros(3))
    with pytest.raises(ValueError, match="not batch-sized"):
        deploy.forward(data=np.zeros((3, 3, 6, 6)))
    with pytest.raises(ValueError, match="no layer 'fc8'"):
        deploy.forward(end="fc8")
    with pytest.raises(ValueError, match="outputs prob"):
        deploy.backward(ip=np.zeros((2, 4)))


def test_input_arrays(tmp_path):
    net = caffe.Net(
        write(
            tmp_path,
            """layer { name: "data" type: "MemoryData" top: "data" top: "label"
                 memory_data_param { batch_size: 2 channels: 1 height: 2 width: 3 } }
               layer { name: "double" type: "Power" bottom: "data" top: "double" power_param { scale: 2 } }""",
        ),
        caffe.TEST,
    )
    with pytest.raises(DataError, match="set_input_arrays"):
        net.forward()
    data = np.arange(24, dtype=np.float32).reshape(4, 1, 2, 3)
    net.set_input_arrays(data, np.arange(4, dtype=np.float32))
    held = net.blobs["label"].data
    for begin in (0, 2, 0):
        np.testing.assert_array_equal(net.forward()["double"], 2 * data[begin : begin + 2])
        np.testing.assert_array_equal(held, [begin, begin + 1])
    data *= 3  # in place between two batches, so the next one has it
    np.testing.assert_array_equal(net.forward()["double"], 2 * data[2:])
    net.set_input_arrays(10 * data, np.arange(4))  # begins again with the first item
    np.testing.assert_array_equal(net.forward()["double"], 20 * data[:2])
    with pytest.raises(DataError, match="expected data of n x 1 x 2 x 3"):
        net.set_input_arrays(data[:, :, :1], np.arange(4))


def test_a_part_of_a_forward_takes_a_batch_where_it_has_the_data_layer(tmp_path):
    net = caffe.Net(
        write(
            tmp_path,
            """layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 } } }
               layer { name: "data" type: "MemoryData" top: "data" top: "label"
                 memory_data_param { batch_size: 1 channels: 1 height: 1 width: 1 } }
               layer { name: "double" type: "Power" bottom: "data" top: "double" power_param { scale: 2 } }""",
        ),
        caffe.TEST,
    )
    net.set_input_arrays(np.arange(4, dtype=np.float32).reshape(4, 1, 1, 1), np.zeros(4, np.float32))
    for number in range(3):
        net.forward(end="x")
        assert net.forward(start="data")["double"] == 2 * number
        assert net.forward(start="double")["double"] == 2 * number


def test_fresh_randomness_at_every_forward(tmp_path, monkeypatch):
    monkeypatch.setattr(mode, "_seed", None)
    caffe.set_random_seed(7)
    net = caffe.Net(
        write(
            tmp_path,
            """layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 100 } } }
               layer { name: "drop" type: "Dropout" bottom: "data" top: "drop" }""",
        ),
        caffe.TRAIN,
    )
    first = net.forward(data=np.ones(100))["drop"].copy()
    assert 0 < np.count_nonzero(first) < 100
    assert (net.forward()["drop"] != first).any()


def test_another_seed_is_for_nets_to_come(tmp_path, monkeypatch):
    """A net that is built again in other shapes keeps its seed."""
    monkeypatch.setattr(mode, "_seed", None)
    text = """layer { name: "data" type: "Input" top: "data" input_param { shape { dim: %d } } }
              layer { name: "drop" type: "Dropout" bottom: "data" top: "drop" }"""
    net = caffe.Net(write(tmp_path, text % 10), caffe.TRAIN)
    other = caffe.Net(write(tmp_path, text % 100), caffe.TRAIN)
    caffe.set_random_seed(7)
    net.blobs["data"].reshape(100)
    for each in (net, other):
        each.blobs["data"].data[...] = 1
    np.testing.assert_array_equal(net.forward()["drop"], other.forward()["drop"])


def test_the_gpu_is_declined():
    caffe.set_mode_cpu()
    caffe.set_device(0)
    with pytest.warns(UserWarning, match="CPU"):
        caffe.set_mode_gpu()


def test_constants_of_dummy_data_can_be_overwritten(tmp_path):
    net = caffe.Net(
        write(
            tmp_path,
            """layer { name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param {
                 shape { dim: 3 dim: 4 } shape { dim: 3 }
                 data_filler { type: "gaussian" } data_filler { value: 2 } } }
               layer { name: "loss" type: "SoftmaxWithLoss" bottom: "data" bottom: "label" top: "loss" }""",
        ),
        caffe.TRAIN,
    )
    np.testing.assert_array_equal(net.blobs["label"].data, 2)
    net.blobs["label"].data[...] = [0, 1, 3]
    losses = [float(net.forward()["loss"]) for _ in range(2)]
    data = net.blobs["data"].data
    expected = np.log(np.exp(data).sum(1)) - data[np.arange(3), [0, 1, 3]]
    assert losses[1] == pytest.approx(expected.mean(), rel=1e-5)
    assert losses[0] != losses[1]


@pytest.mark.parametrize(
    "options, blobs",
    [
        ({}, ["always", "below_1"]),
        (dict(level=1), ["always", "from_1"]),
        (dict(stages=["A"]), ["always", "below_1", "A"]),
        (dict(level=1, stages=["A", "B"]), ["always", "from_1", "A", "AB"]),
    ],
)
def test_levels_and_stages(options, blobs, tmp_path):
    rules = {"always": "", "below_1": "max_level: 0", "from_1": "min_level: 1"}
    rules |= {"A": 'stage: "A"', "AB": 'stage: "A" stage: "B"'}
    text = 'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 } } }'
    for name, rule in rules.items():
        text += f'layer {{ name: "{name}" type: "AbsVal" bottom: "data" top: "{name}" include {{ {rule} }} }}'
    net = caffe.Net(write(tmp_path, text), caffe.TEST, **options)
    assert list(net.blobs) == ["data", *blobs]


def test_arrays_outlive_their_net(tmp_path):
    net = caffe.Net(write(tmp_path, DEPLOY), caffe.TEST)
    net.forward()
    blobs = list(net.blobs.values()) + [blob for blobs in net.params.values() for blob in blobs]
    arrays = [array for blob in blobs for array in (blob.data, blob.diff)]
    del net, blobs
    gc.collect()
    assert all(np.isfinite(array).all() for array in arrays)


def test_gradients_of_a_blob_that_several_layers_read(tmp_path):
    """A backward that ends at one of the layers gives the sum of their gradients, as Caffe's hidden Split does."""
    (tmp_path / "net.prototxt").write_text("""force_backward: true
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 4 } } }
    layer { name: "a" type: "Power" bottom: "x" top: "a" power_param { scale: 2 } }
    layer { name: "b" type: "Power" bottom: "x" top: "b" power_param { scale: 3 } }
    layer { name: "sum" type: "Eltwise" bottom: "a" bottom: "b" top: "sum" }""")
    net = caffe.Net(str(tmp_path / "net.prototxt"), caffe.TRAIN)
    net.forward()
    net.blobs["sum"].diff[...] = 1
    for end in ("x", "a"):
        assert (net.backward(diffs=["x"], end=end)["x"] == 5).all(), end


HEADS = """force_backward: true
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 } } }
layer { name: "mid" type: "Power" bottom: "x" top: "mid" power_param { scale: 1 } }
layer { name: "half" type: "Power" bottom: "mid" top: "mid" power_param { scale: 0.5 } }
layer { name: "a" type: "Power" bottom: "mid" top: "a" power_param { scale: 2 } }
layer { name: "aa" type: "Power" bottom: "a" top: "aa" power_param { scale: 1 } }
layer { name: "b" type: "Power" bottom: "mid" top: "b" power_param { scale: 6 } }
"""


def test_gradients_set_to_zero_are_zero_for_every_reader(tmp_path):
    """Caffe's net.blobs has the Split's blobs, which scripts set to 0. Here this must also clear gradients that layers
    above the start have sent to a blob they share. Otherwise gradients stay, as in Caffe."""
    net = caffe.Net(write(tmp_path, HEADS), caffe.TEST)
    net.forward()
    for head, expected in (("b", 3), ("a", 1), ("aa", 1), ("b", 3)):
        for blob in net.blobs.values():
            blob.diff[...] = 0
        net.blobs[head].diff[...] = 1
        assert (net.backward(start=head)["x"] == expected).all(), head
    net.blobs["a"].diff[...] = 1
    assert (net.backward(start="a")["x"] == 4).all()


def test_a_backward_in_two_parts_is_one(tmp_path):
    net = caffe.Net(write(tmp_path, HEADS), caffe.TEST)
    net.forward()
    for _ in range(2):
        for blob in net.blobs.values():
            blob.diff[...] = 0
        net.blobs["aa"].diff[...] = net.blobs["b"].diff[...] = 1
        net.backward(end="aa")
        assert (net.backward(start="a")["x"] == 4).all()


SUM = """force_backward: true
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 16 dim: 8 dim: 8 } } }
layer { name: "a" type: "Convolution" bottom: "x" top: "a"
  convolution_param { num_output: 16 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "b" type: "Convolution" bottom: "x" top: "b"
  convolution_param { num_output: 16 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "sum" type: "Eltwise" bottom: "a" bottom: "b" top: "sum" }
"""


def test_a_gradient_that_a_script_sets_beside_others_that_it_has_looked_at(tmp_path):
    net = caffe.Net(write(tmp_path, SUM), caffe.TEST)
    net.forward()
    given, looked = net.blobs["sum"].diff, net.blobs["a"].diff
    for value in (1, 2):
        given[...] = value
        assert (net.backward(diffs=["a"])["a"] == value).all() and (looked == value).all()
        weights = [net.params[name][0].data.reshape(16, 16).sum(0) for name in "ab"]
        np.testing.assert_allclose(net.blobs["x"].diff[0, :, 0, 0], value * sum(weights), rtol=1e-4, atol=1e-5)


BRANCHES = """force_backward: true
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 4 } } }
layer { name: "x" type: "Power" bottom: "data" top: "x" power_param { scale: 1 } }
layer { name: "branch" type: "Power" bottom: "x" top: "branch" power_param { scale: 3 } }
"""


def test_a_gradient_set_at_a_branch_does_not_pass_the_shortcut(tmp_path):
    text = BRANCHES + 'layer { name: "sum" type: "Eltwise" bottom: "x" bottom: "branch" top: "sum" }'
    net = caffe.Net(write(tmp_path, text), caffe.TEST)
    net.forward(end="branch")
    net.blobs["branch"].diff[...] = 1
    np.testing.assert_array_equal(net.backward(start="branch")["data"], [[3, 3, 3, 3]])


@pytest.mark.parametrize(
    "layer",
    [
        'type: "Eltwise" bottom: "branch" bottom: "x" top: "top"',
        'type: "Bias" bottom: "branch" top: "top"',
        'type: "Bias" bottom: "branch" bottom: "x" top: "top" bias_param { axis: 0 }',
        """type: "Split" bottom: "branch" top: "top" top: "unread" }
           layer { name: "stop" type: "Power" bottom: "unread" top: "stop" propagate_down: false""",
    ],
    ids=["sum", "bias", "sum of a Bias", "Split"],
)
def test_gradients_that_pass_as_they_are_can_be_changed_one_by_one(layer, tmp_path):
    net = caffe.Net(write(tmp_path, BRANCHES + f'layer {{ name: "top" {layer} }}'), caffe.TEST)
    net.forward()
    gradient = np.array([[1, 2, 3, 4]], np.float32)
    net.blobs["top"].diff[...] = gradient
    net.backward(start="top", end="top")
    np.testing.assert_array_equal(net.blobs["branch"].diff, gradient)
    net.blobs["branch"].diff[...] = 0
    np.testing.assert_array_equal(net.blobs["top"].diff, gradient)
