"""A caffe.Net of phase TEST is fused until a script looks inside. From then on it is as if it had never been fused."""

import gc
import sys
import threading
import weakref

import numpy as np
import pytest

import engine.caffe as caffe
from engine.caffe.fused import FusedNet
from tests.caffe.nets import TRAINED, write

# Two convolutions with layers behind them that are fused, one of these in place; a sum; two outputs.
TEXT = """
name: "fused"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 8 dim: 8 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 16 kernel_size: 3 pad: 1 bias_term: false weight_filler { type: "xavier" } } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "bn" }
layer { name: "scale" type: "Scale" bottom: "bn" top: "bn" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "bn" top: "bn" }
layer { name: "two" type: "Convolution" bottom: "bn" top: "two"
  convolution_param { num_output: 16 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "sum" type: "Eltwise" bottom: "bn" bottom: "two" top: "sum" }
layer { name: "sum_relu" type: "ReLU" bottom: "sum" top: "sum" }
layer { name: "pool" type: "Pooling" bottom: "sum" top: "pool" pooling_param { pool: AVE global_pooling: true } }
layer { name: "ip" type: "InnerProduct" bottom: "pool" top: "ip"
  inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
layer { name: "norm" type: "AbsVal" bottom: "sum" top: "norm" }
"""
SMALL = {"rtol": 1e-4, "atol": 1e-5}


def settle(net):
    """Sets all statistics to values other than 0."""
    rng = np.random.default_rng(3)
    net.params["bn"][0].data[...] = rng.normal(size=16)
    net.params["bn"][1].data[...] = rng.uniform(1, 3, 16)
    net.params["bn"][2].data[...] = 2
    return net


@pytest.fixture
def net(tmp_path):
    return settle(caffe.Net(write(tmp_path, TEXT), caffe.TEST))


@pytest.fixture
def plain(tmp_path):
    """Returns the same net, which is never fused."""
    plain = settle(caffe.Net(write(tmp_path, "force_backward: true\n" + TEXT, "plain.prototxt"), caffe.TEST))
    assert not is_fused(plain)
    return plain


def is_fused(net):
    return isinstance(net._net._now, FusedNet)


def images(seed=1, shape=(2, 3, 8, 8)):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def assert_same(net, plain, names=None):
    for name in names or plain.blobs:
        np.testing.assert_allclose(net.blobs[name].data, plain.blobs[name].data, **SMALL, err_msg=name)


def test_inputs_outputs_and_names_can_be_had_fused(net, plain):
    for seed in (1, 2):
        net.blobs["data"].data[...] = plain.blobs["data"].data[...] = images(seed)
        result, expected = net.forward(), plain.forward()
        assert sorted(result) == ["norm", "prob"]
        for name in result:
            np.testing.assert_allclose(result[name], expected[name], **SMALL)
    assert_same(net, plain, ["data", "prob", "norm"])
    assert list(net.blobs) == list(plain.blobs)
    assert [blob.shape for blob in net.blobs.values()] == [blob.shape for blob in plain.blobs.values()]
    assert [layer.type for layer in net.layers] == [layer.type for layer in plain.layers]
    assert net.bottom_names == plain.bottom_names
    assert net.top_names == plain.top_names
    assert [layer.name for layer in net.layers] == net._layer_names
    assert is_fused(net)
    ops = net._net.net.builder.type_of_op
    assert not {"BatchNorm", "Scale", "ReLU", "EltwiseSum"} & set(ops)


LOOKS = {
    "data": lambda net: net.blobs["conv"].data,
    "diff": lambda net: net.blobs["prob"].diff,
    "gradient": lambda net: net.params["conv"][0].diff,
    "end": lambda net: net.forward(end="two"),
    "start": lambda net: net.forward(start="two"),
    "blobs": lambda net: net.forward(["conv"]),
    "backward": lambda net: net.backward(),
    "clear": lambda net: net.clear_param_diffs(),
}


@pytest.mark.parametrize("look", LOOKS)
def test_whoever_looks_inside_sees_the_last_forward(look, net, plain):
    """What has been written into inputs, outputs and parameters since that forward counts for the next one only."""
    for each in (net, plain):
        each.forward(data=images(1))
        each.forward(data=images(2))
    runs = look in ("start", "end", "blobs")  # these run again, with what has been written
    for each in (net, plain) if runs else (net,):
        each.blobs["data"].data[...] = images(3)
        each.params["conv"][0].data[...] *= 2
        each.params["two"][0].data[...] += 1
    assert is_fused(net)
    for each in (net, plain) if runs else (net,):
        LOOKS[look](each)
    assert not is_fused(net)
    assert_same(net, plain, list(plain.blobs)[1:])
    for each in (net, plain):
        each.params["conv"][0].data[...] = 0.1
        each.params["two"][0].data[...] = 0.2
        each.forward(data=images(4))
    assert_same(net, plain)


@pytest.mark.parametrize("change", ["save", "copy_from", "share_with"])
def test_the_last_forward_stays_when_weights_change(change, net, plain, tmp_path):
    net.forward(data=images())
    plain.forward(data=images())
    other = str(tmp_path / "other.caffemodel")
    plain.params["two"][0].data[...] *= 3
    plain.save(other)
    if change == "save":
        net.params["conv"][0].data[...] = 5
        net.save(str(tmp_path / "mine.caffemodel"))
    elif change == "copy_from":
        net.copy_from(other)
    else:
        twin = settle(caffe.Net(write(tmp_path, TEXT), caffe.TEST))
        net.share_with(twin)
        assert not is_fused(twin)
        twin.params["conv"][0].data[...] = 0
        assert not net.forward(["conv"])["conv"].any()
        return
    assert_same(net, plain, ["conv", "sum"])


def test_a_save_of_weights_that_nobody_has_changed_leaves_the_net_fused(net, plain, tmp_path):
    path, held = str(tmp_path / "mine.caffemodel"), net.params["conv"][0].data
    for seed in (1, 2):
        net.forward(data=images(seed))
        plain.forward(data=images(seed))
        net.save(path)
        assert is_fused(net)
    assert_same(net, plain)
    held[...] = 5
    net.save(path)
    other = caffe.Net(write(tmp_path, TEXT), path, caffe.TEST)
    assert (other.params["conv"][0].data == 5).all()


def test_weights_of_files_before_the_first_forward(net, plain, tmp_path):
    path = str(tmp_path / "other.caffemodel")
    plain.params["two"][0].data[...] *= 3
    plain.save(path)
    held = net.params["two"][0].data
    net.copy_from(path)
    np.testing.assert_array_equal(held, plain.params["two"][0].data)
    net.save(str(tmp_path / "again.caffemodel"))
    assert (tmp_path / "again.caffemodel").stat().st_size > 1000
    assert is_fused(net)
    net.forward(data=images())
    plain.forward(data=images())
    assert_same(net, plain, ["prob", "norm"])


def test_what_is_written_into_parameters_takes_effect(net, plain):
    """Whole arrays, held ones and slices are written, also of layers that are folded into others."""
    held = [(each.params["conv"][0].data[3:5], each.params["scale"][1].data) for each in (net, plain)]
    for seed in range(3):
        for each, (weights, shift) in zip((net, plain), held):
            weights *= 1.5
            shift += seed
            each.params["bn"][2].data[...] += 1
            each.params["ip"][1].data[2] += 1
            gc.collect()
            each.forward(data=images(seed))
        assert is_fused(net)
        assert_same(net, plain, ["prob", "norm"])
    weights = net.params["conv"][0].data
    assert np.shares_memory(weights, held[0][0])


def test_arrays_stay_live(net, plain):
    data, prob = net.blobs["data"].data, net.forward()["prob"]
    weights, shift = net.params["conv"][0].data, net.params["scale"][1].data
    data[...] = images()
    before = net.forward()["prob"].copy()
    np.testing.assert_array_equal(prob, before)
    net.blobs["conv"].data  # noqa: B018
    assert not is_fused(net)
    np.testing.assert_array_equal(prob, before)
    for seed in (2, 3):
        weights *= 2
        shift += 1
        plain.params["conv"][0].data[...] *= 2
        plain.params["scale"][1].data[...] += 1
        data[...] = images(seed)
        net.forward()
        plain.forward(data=images(seed))
        np.testing.assert_allclose(prob, plain.blobs["prob"].data, **SMALL)
        assert_same(net, plain)
    net.params["conv"][0].data[...] = 7
    assert (weights == 7).all()


def test_reshape(net, plain):
    weights = net.params["conv"][0].data
    for batch in (4, 1):
        for each in (net, plain):
            each.params["conv"][0].data[...] *= 2
            each.blobs["data"].reshape(batch, 3, 8, 8)
            each.forward(data=images(batch, (batch, 3, 8, 8)))
        assert is_fused(net)
        assert net.blobs["conv"].shape == (batch, 16, 8, 8)
        assert_same(net, plain, ["prob", "norm"])
    np.testing.assert_array_equal(weights, net.params["conv"][0].data)
    net.blobs["data"].reshape(2, 3, 8, 8)  # the forward that applies it has not run yet
    assert_same(net, plain, ["conv", "sum"])
    assert net.blobs["data"].shape == (2, 3, 8, 8)
    np.testing.assert_allclose(net.forward(data=images())["prob"].sum(1), 1, rtol=1e-5)


def test_all_samples_of_a_classifier_run_fused(tmp_path, net):
    weights = str(tmp_path / "fused.caffemodel")
    net.save(weights)
    classifier = caffe.Classifier(write(tmp_path, TEXT.replace('layer { name: "norm"', "# ")), weights)
    predictions = classifier.predict([np.ones((8, 8, 3), np.float32)])
    np.testing.assert_allclose(predictions.sum(), 1, rtol=1e-5)
    assert is_fused(classifier)


NOT_FUSED = {
    "running sums": TEXT.replace('top: "bn" }', 'top: "bn" batch_norm_param { use_global_stats: false } }', 1),
    "gradients": "force_backward: true" + TEXT,
    "in place": TEXT.replace("} } }", '} } } layer { name: "first" type: "AbsVal" bottom: "data" top: "data" }', 1),
    "other weights": TEXT.replace("num_output: 4", "num_output: 4 normalize: true"),
    "python": TEXT + 'layer { name: "p" type: "Python" bottom: "ip" top: "p" '
    'python_param { module: "twice" layer: "Twice" } }',
}


@pytest.mark.parametrize("reason", NOT_FUSED)
def test_nets_that_cannot_repeat_a_forward_are_never_fused(reason, tmp_path):
    (tmp_path / "twice.py").write_text(
        "import caffe\n"
        "class Twice(caffe.Layer):\n"
        "    def setup(self, bottom, top): pass\n"
        "    def reshape(self, bottom, top): top[0].reshape(*bottom[0].shape)\n"
        "    def forward(self, bottom, top): top[0].data[...] = 2 * bottom[0].data\n"
    )
    net = caffe.Net(write(tmp_path, NOT_FUSED[reason]), caffe.TEST)
    assert not is_fused(net)
    assert not is_fused(caffe.Net(write(tmp_path, TRAINED), caffe.TRAIN))
    assert sorted(net.forward(data=images()))[-1] == "prob"


def test_what_a_layer_makes_up_is_what_the_last_forward_had(tmp_path):
    net = caffe.Net(
        write(
            tmp_path,
            """layer { name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param {
                 shape { dim: 3 dim: 4 } shape { dim: 3 }
                 data_filler { type: "gaussian" } data_filler { value: 2 } } }
               layer { name: "double" type: "Power" bottom: "data" top: "double" power_param { scale: 2 } }
               layer { name: "half" type: "Power" bottom: "double" top: "half" power_param { scale: 0.5 } }
               layer { name: "sum" type: "Eltwise" bottom: "label" bottom: "label" top: "sum" }""",
        ),
        caffe.TEST,
    )
    label = net.blobs["label"].data
    np.testing.assert_array_equal(label, 2)
    label[...] = [0, 1, 3]
    for _ in range(3):
        half = net.forward()["half"].copy()
    assert is_fused(net)
    label[...] = 5
    np.testing.assert_allclose(net.blobs["double"].data, 2 * half, rtol=1e-6)
    np.testing.assert_array_equal(net.blobs["sum"].data, [0, 2, 6])
    assert not is_fused(net)
    after = net.forward()
    np.testing.assert_array_equal(after["sum"], 10)
    assert (after["half"] != half).all()


def test_looking_inside_reads_no_further_batch(tmp_path):
    net = caffe.Net(
        write(
            tmp_path,
            """layer { name: "data" type: "MemoryData" top: "data" top: "label"
                 memory_data_param { batch_size: 2 channels: 1 height: 2 width: 3 } }
               layer { name: "double" type: "Power" bottom: "data" top: "double" power_param { scale: 2 } }
               layer { name: "top" type: "Power" bottom: "double" top: "top" power_param { shift: 1 } }
               layer { name: "silence" type: "Silence" bottom: "label" }""",
        ),
        caffe.TEST,
    )
    data = np.arange(36, dtype=np.float32).reshape(6, 1, 2, 3)
    net.set_input_arrays(data, np.arange(6))
    net.forward()
    net.forward()
    assert is_fused(net)
    np.testing.assert_array_equal(net.blobs["double"].data, 2 * data[2:4])
    np.testing.assert_array_equal(net.forward()["top"], 2 * data[4:] + 1)


def test_a_loss_can_be_gone_back_from(tmp_path):
    """The results of phase TEST come from a fused net, the gradients from the net that replaces it."""
    net = caffe.Net(write(tmp_path, TRAINED), caffe.TEST)
    assert net.blob_loss_weights["loss"] == 1
    loss = float(net.forward(data=np.ones((4, 5)), label=np.zeros(4))["loss"])
    assert is_fused(net)
    net.backward()
    assert net.params["ip"][0].diff.any()
    assert float(net.blobs["loss"].data) == pytest.approx(loss)


def test_two_threads_that_look_at_once(net, plain):
    net.forward(data=images())
    plain.forward(data=images())
    fused, seen, start = net._net.net, [], threading.Barrier(2)

    def look():
        start.wait()
        seen.append((net.blobs["conv"].data, net._net.net))

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen[0][1] is seen[1][1] is net._net.net is not fused
    for values, _ in seen:
        np.testing.assert_allclose(values, plain.blobs["conv"].data, **SMALL)


def test_parameters_can_be_read_while_another_thread_looks_inside(tmp_path):
    wrong, path = [], write(tmp_path, TEXT)

    def read(net, looked):
        try:
            while not looked.is_set():
                for blobs in net.params.values():
                    for blob in blobs:
                        assert blob.data.shape == blob.shape
                assert net.blobs["data"].data.shape == (2, 3, 8, 8)
        except Exception as error:
            wrong.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(30):
            net, looked = caffe.Net(path, caffe.TEST), threading.Event()
            net.forward()
            reader = threading.Thread(target=read, args=(net, looked))
            reader.start()
            net.blobs["conv"].data  # noqa: B018
            looked.set()
            reader.join()
            assert not is_fused(net)
    finally:
        sys.setswitchinterval(interval)
    assert not wrong


def test_layers_and_their_parameters_are_the_same_objects_whatever_the_net_becomes(net):
    layers, elements, params = net.layers, [*net.layers], {name: [*blobs] for name, blobs in net.params.items()}
    net.forward(["conv"])
    net.blobs["data"].reshape(1, 3, 9, 9)
    net.reshape()
    assert not is_fused(net)
    assert net.layers is layers
    assert all(mine is its for mine, its in zip(net.layers, elements, strict=True))
    for layer in net.layers:
        held = params.get(layer.name, [])
        assert all(mine is its for mine, its in zip(layer.blobs, held, strict=True)), layer
        assert all(mine is its for mine, its in zip(net.params.get(layer.name, []), held, strict=True)), layer


@pytest.mark.parametrize("looked", [False, True])
def test_a_net_that_is_dropped_is_freed_at_once(looked, tmp_path):
    gc.disable()
    try:
        net = caffe.Net(write(tmp_path, TEXT), caffe.TEST)
        net.forward(["conv"] if looked else None)
        assert is_fused(net) != looked
        dropped = [weakref.ref(net), weakref.ref(net._net.net)]
        del net
        assert [each() for each in dropped] == [None, None]
    finally:
        gc.enable()


def test_weights_lie_as_kernels_take_them_once_somebody_has_looked(net, plain):
    """Although the net was fused before, no weights are reordered at each forward."""
    net.forward(["conv"])

    def reorders(each):
        program = each._net.net.program
        return [op for op in range(len(program)) for backward, *_ in program.reorders(op) if not backward]

    assert reorders(net) == reorders(plain)


def test_nets_that_remember_are_never_repeated(tmp_path):
    """To show an inner blob, a forward is repeated. In a recurrent net that would change the states."""
    text = """layer { name: "x" type: "Input" top: "x" top: "cont"
      input_param { shape { dim: 2 dim: 1 dim: 3 } shape { dim: 2 dim: 1 } } }
    layer { name: "l" type: "%s" bottom: "x" bottom: "cont" top: "h" recurrent_param { num_output: 4
      weight_filler { type: "uniform" min: -0.5 max: 0.5 } } }
    layer { name: "ip" type: "InnerProduct" bottom: "h" top: "ip" inner_product_param { num_output: 2
      weight_filler { type: "xavier" } } }"""
    for kind in ("LSTM", "GRU", "RNN"):
        (tmp_path / "net.prototxt").write_text(text % kind)
        looked, blind = (caffe.Net(str(tmp_path / "net.prototxt"), caffe.TEST) for _ in range(2))
        random = np.random.default_rng(3)
        for step in range(4):
            x = random.normal(size=(2, 1, 3)).astype(np.float32)
            for net in (looked, blind):
                net.blobs["x"].data[...], net.blobs["cont"].data[...] = x, step > 0
                net.forward()
            looked.blobs["h"].data.sum()
        assert looked.blobs["ip"].data.tobytes() == blind.blobs["ip"].data.tobytes(), kind
