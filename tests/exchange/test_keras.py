"""Imports weights that Keras saved as HDF5 onto a net, which then has to compute what Keras does, channels last."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from engine.cli import main
from engine.errors import EngineError
from engine.exchange.keras_import import import_keras
from engine.weights import read_caffemodel
from tests.exchange import harness

h5py = pytest.importorskip("h5py")

NET = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 6 dim: 5 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 4 kernel_size: 3 } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "bn" batch_norm_param { eps: 0.001 } }
layer { name: "bn/scale" type: "Scale" bottom: "bn" top: "bn" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "bn" top: "bn" }
layer { name: "dw" type: "DepthwiseConvolution" bottom: "bn" top: "dw"
  convolution_param { num_output: 8 kernel_h: 2 kernel_w: 1 bias_term: false } }
layer { name: "flat" type: "Flatten" bottom: "dw" top: "flat" }
layer { name: "dense" type: "InnerProduct" bottom: "flat" top: "dense" inner_product_param { num_output: 7 } }
"""
RANDOM = np.random.default_rng(8)
ARRAYS = {
    "conv": {"kernel": RANDOM.normal(size=(3, 3, 3, 4)), "bias": RANDOM.normal(size=4)},
    "bn": {
        "gamma": RANDOM.uniform(0.5, 1.5, 4),
        "beta": RANDOM.normal(size=4),
        "moving_mean": RANDOM.normal(size=4),
        "moving_variance": RANDOM.uniform(0.5, 1.5, 4),
    },
    "dw": {"depthwise_kernel": RANDOM.normal(size=(2, 1, 4, 2))},
    "dense": {"kernel": RANDOM.normal(size=(3 * 3 * 8, 7)), "bias": RANDOM.normal(size=7)},
}


def correlate(x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Computes a convolution of x (n, h, w, in) with a kernel (h, w, in, out)."""
    high, wide = kernel.shape[:2]
    windows = np.lib.stride_tricks.sliding_window_view(x, (high, wide), (1, 2))
    return np.einsum("nhwcij,ijco->nhwo", windows, kernel)


def norm(x: np.ndarray, by: dict) -> np.ndarray:
    """Computes Keras' BatchNormalization of x (n, ..., c)."""
    return (x - by["moving_mean"]) / np.sqrt(by["moving_variance"] + 1e-3) * by["gamma"] + by["beta"]


def reference(x: np.ndarray, between=lambda x: x) -> np.ndarray:
    """Computes the net for x (n, h, w, c) as Keras does; between: computes the layers between flat and dense."""
    x = correlate(x, ARRAYS["conv"]["kernel"]) + ARRAYS["conv"]["bias"]
    x = np.maximum(norm(x, ARRAYS["bn"]), 0)
    kernel = ARRAYS["dw"]["depthwise_kernel"]
    channels = [correlate(x[..., c : c + 1], kernel[:, :, c : c + 1]) for c in range(4)]
    x = np.concatenate(channels, -1).reshape(len(x), -1)
    return between(x) @ ARRAYS["dense"]["kernel"] + ARRAYS["dense"]["bias"]


def write(path: Path, style: str, arrays: dict = ARRAYS) -> None:
    """Writes weights as Keras does.

    Args:
        style: "keras 2" is save() of Keras 2, "keras 3" the legacy HDF5 of Keras 3. "vars" is the .weights.h5 of early
            versions of Keras 3, "named" that of later ones, which name groups by class. "archive" is .keras.
    """
    if style == "archive":
        inner = path.with_suffix(".inner")
        write(inner, "named", arrays)
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("config.json", "{}")
            archive.write(inner, "model.weights.h5")
        return
    with h5py.File(path, "w") as file:
        for index, (layer, stored) in enumerate(arrays.items()):
            for number, (name, values) in enumerate(stored.items()):
                place = {
                    "keras 2": f"model_weights/{layer}/{layer}/{name}:0",
                    "keras 3": f"model_weights/{layer}/sequential/{layer}/{name.removeprefix('depthwise_')}",
                    "vars": f"layers/{layer}/vars/{number}",
                    "named": f"layers/class_{index}/vars/{number}",
                }[style]
                file[place] = values.astype(np.float32)
            if style == "named":
                file[f"layers/class_{index}/vars"].attrs["name"] = layer
        file["optimizer_weights/conv/kernel:0"] = np.zeros((3, 3, 3, 4), np.float32)


@pytest.mark.parametrize("style", ["keras 2", "keras 3", "vars", "named", "archive"])
def test_engine_computes_what_keras_does(style, tmp_path):
    check(tmp_path, style, NET)


def test_a_group_is_not_the_layer_that_it_is_called_by(tmp_path):
    """Keras 3 numbers the layers of a class: here class_3 is the name of the net's last layer, and the group of
    another."""
    text = NET.replace('name: "dense"', 'name: "class_3"')
    (tmp_path / "net.prototxt").write_text(text)
    arrays = {**ARRAYS, "class_3": ARRAYS["dense"], "other": {"kernel": np.ones((72, 7)), "bias": np.ones(7)}}
    del arrays["dense"]
    write(tmp_path / "x.h5", "named", dict(sorted(arrays.items(), key=lambda each: each[0] == "class_3")))
    import_keras(tmp_path / "x.h5", tmp_path / "net.prototxt", tmp_path / "x.caffemodel", onto=True)
    (weights, _) = read_caffemodel(tmp_path / "x.caffemodel")["class_3"]
    assert weights.std() > 0.5

    del arrays["class_3"]
    write(tmp_path / "x.h5", "named", arrays)
    (tmp_path / "x.caffemodel").unlink()
    with pytest.raises(EngineError, match=r"layer 'class_3' .*: the file has no group of that name"):
        import_keras(tmp_path / "x.h5", tmp_path / "net.prototxt", tmp_path / "x.caffemodel", onto=True)


def test_a_depthwise_convolution_by_groups(tmp_path):
    """Caffe's own type is Convolution with groups. Keras 3 calls its kernel "kernel", without "depthwise_"."""
    check(
        tmp_path,
        "keras 3",
        NET.replace('"DepthwiseConvolution"', '"Convolution"').replace("kernel_h", "group: 4 kernel_h"),
    )


FLAT = 'layer { name: "flat" type: "Flatten" bottom: "dw" top: "flat" }'
FLAT_NORM = {
    "gamma": RANDOM.uniform(0.5, 1.5, 72),
    "beta": RANDOM.normal(size=72),
    "moving_mean": RANDOM.normal(size=72),
    "moving_variance": RANDOM.uniform(0.5, 1.5, 72),
}


BETWEEN = {  # Flatten and InnerProduct: prototxt, the arrays of `between`, and what Keras computes
    "relu": ('layer { name: "between" type: "ReLU" bottom: "flat" top: "flat" }', {}, lambda x: np.maximum(x, 0)),
    "norm": (
        'layer { name: "between" type: "BatchNorm" bottom: "flat" top: "flat" batch_norm_param { eps: 0.001 } }'
        'layer { name: "between/scale" type: "Scale" bottom: "flat" top: "flat" scale_param { bias_term: true } }'
        'layer { name: "sigmoid" type: "Sigmoid" bottom: "flat" top: "flat" }',
        FLAT_NORM,
        lambda x: 1 / (1 + np.exp(-norm(x, FLAT_NORM))),
    ),
    "prelu": (
        'layer { name: "between" type: "PReLU" bottom: "flat" top: "flat" }',
        {"alpha": FLAT_NORM["gamma"]},
        lambda x: np.where(x > 0, x, x * FLAT_NORM["gamma"]),
    ),
    "reshape": (
        'layer { name: "between" type: "Reshape" bottom: "flat" top: "flat" '
        "reshape_param { shape { dim: 0 dim: -1 dim: 1 dim: 1 } } }",
        {},
        lambda x: x,
    ),
    "sum": (
        'layer { name: "relu_flat" type: "ReLU" bottom: "flat" top: "positive" }'
        'layer { name: "between" type: "Eltwise" bottom: "flat" bottom: "positive" top: "sum" }',
        {},
        lambda x: x + np.maximum(x, 0),
    ),
}


@pytest.mark.parametrize("kind", BETWEEN)
def test_layers_between_flatten_and_inner_product(kind, tmp_path):
    text, stored, between = BETWEEN[kind]
    top = "sum" if kind == "sum" else "flat"
    arrays = {**ARRAYS, "between": stored} if stored else ARRAYS
    net = NET.replace(FLAT, FLAT + text)
    check(
        tmp_path,
        "keras 3",
        net.replace('bottom: "flat" top: "dense"', f'bottom: "{top}" top: "dense"'),
        arrays,
        between,
    )


def test_channels_that_the_net_itself_puts_last(tmp_path):
    permute = 'layer { name: "last" type: "Permute" bottom: "dw" top: "last" permute_param { order: [0, 2, 3, 1] } }'
    check(tmp_path, "keras 3", NET.replace(FLAT, permute + FLAT.replace('"dw"', '"last"')))


@pytest.mark.parametrize(
    ("text", "layer"),
    [
        (
            FLAT.replace('top: "flat"', 'top: "a"') + 'layer { name: "b" type: "Concat" bottom: "a" top: "flat" }',
            "dense",
        ),
        (
            'layer { name: "up" type: "Reshape" bottom: "bn" top: "up" '
            "reshape_param { shape { dim: 0 dim: 8 dim: -1 dim: 3 } } }"
            'layer { name: "bn_up" type: "BatchNorm" bottom: "up" top: "up" }' + FLAT,
            "bn_up",
        ),
    ],
)
def test_elements_whose_order_is_unknown_are_refused(text, layer, tmp_path):
    write(tmp_path / "x.h5", "keras 2", {**ARRAYS, "bn_up": FLAT_NORM})
    (tmp_path / "net.prototxt").write_text(NET.replace(FLAT, text))
    with pytest.raises(EngineError, match=f"layer '{layer}' .*: the order in which Keras, channels last, has"):
        import_keras(tmp_path / "x.h5", tmp_path / "net.prototxt", tmp_path / "x.caffemodel", onto=True)


def check(folder: Path, style: str, net: str, arrays: dict = ARRAYS, between=lambda x: x) -> None:
    source = folder / ("x.keras" if style == "archive" else "x.h5")
    write(source, style, arrays)
    (folder / "net.prototxt").write_text(net)
    files = [str(source), *(str(folder / name) for name in ("net.prototxt", "x.caffemodel"))]
    assert main(["import", *files, "--onto"]) == 0
    inputs = harness.random_inputs({"data": (2, 3, 6, 5)})
    found = harness.engine_outputs(net, files[2], inputs)["dense"]
    harness.assert_close(found, reference(inputs["data"].transpose(0, 2, 3, 1), between).astype(np.float32))


@pytest.mark.parametrize(
    ("layer", "stored", "message"),
    [
        ("dense", None, "layer 'dense' (InnerProduct): the file has no group of that name"),
        ("bn", {"gamma": np.ones(4)}, "layer 'bn' (BatchNorm): the file has no moving_mean of it"),
        ("conv", {"kernel": np.ones((3, 3, 3, 5))}, "layer 'conv' (Convolution): the file has 5 x 3 x 3 x 3, the net"),
    ],
)
def test_what_does_not_fit_is_named(layer, stored, message, tmp_path):
    arrays = {**ARRAYS, layer: stored or {}}
    write(tmp_path / "x.h5", "keras 2", arrays)
    (tmp_path / "net.prototxt").write_text(NET)
    with pytest.raises(EngineError) as error:
        import_keras(tmp_path / "x.h5", tmp_path / "net.prototxt", tmp_path / "x.caffemodel", onto=True)
    assert str(error.value).startswith(f"{tmp_path / 'x.h5'}: {message}")
    assert not (tmp_path / "x.caffemodel").exists()


SHIFTED = NET.replace("scale_param { bias_term: true }", "")
GATED = NET.replace(
    'layer { name: "bn/scale" type: "Scale" bottom: "bn" top: "bn" scale_param { bias_term: true } }',
    """layer { name: "mean" type: "Pooling" bottom: "data" top: "mean" pooling_param { global_pooling: true } }
    layer { name: "gate" type: "InnerProduct" bottom: "mean" top: "gate" inner_product_param { num_output: 4 } }
    layer { name: "gated" type: "Scale" bottom: "bn" bottom: "gate" top: "bn" scale_param { axis: 0 } }""",
)


@pytest.mark.parametrize(
    ("net", "style", "left_out", "message"),
    [
        (SHIFTED, "keras 2", (), "the file has a beta of it; expected bias_term: true in layer 'bn/scale' (Scale)"),
        (GATED, "keras 2", (), "the file scales it; expected a Scale after it"),
        (NET, "vars", ("gamma",), "the file has three arrays of it, and does not say whether the first is its gamma"),
    ],
    ids=["a Scale without bias", "a Scale by another blob", "one of two"],
)
def test_what_a_norm_has_is_not_lost(net, style, left_out, message, tmp_path):
    norm = {name: values for name, values in ARRAYS["bn"].items() if name not in left_out}
    write(tmp_path / "x.h5", style, {**ARRAYS, "bn": norm, "gate": {"kernel": np.ones((3, 4)), "bias": np.ones(4)}})
    (tmp_path / "net.prototxt").write_text(net)
    with pytest.raises(EngineError) as error:
        import_keras(tmp_path / "x.h5", tmp_path / "net.prototxt", tmp_path / "x.caffemodel", onto=True)
    assert str(error.value).startswith(f"{tmp_path / 'x.h5'}: layer 'bn' (BatchNorm): {message}")


def test_a_norm_that_neither_scales_nor_shifts(tmp_path):
    norm = {name: values for name, values in ARRAYS["bn"].items() if name.startswith("moving_")}
    write(tmp_path / "x.h5", "vars", {**ARRAYS, "bn": norm})
    (tmp_path / "net.prototxt").write_text(NET)
    import_keras(tmp_path / "x.h5", tmp_path / "net.prototxt", tmp_path / "x.caffemodel", onto=True)
    blobs = read_caffemodel(tmp_path / "x.caffemodel")
    for found, expected in zip(
        [*blobs["bn"], *blobs["bn/scale"]], [*norm.values(), [1], [1] * 4, [0] * 4], strict=True
    ):
        np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-6)


def test_a_net_has_to_be_there(tmp_path, capsys):
    write(tmp_path / "x.h5", "keras 2")
    assert main(["import", *(str(tmp_path / name) for name in ("x.h5", "net.prototxt", "x.caffemodel"))]) == 1
    assert "write it, and give --onto" in capsys.readouterr().err


def test_a_net_is_not_written_over(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "x.h5", "keras 2")
    (tmp_path / "net.prototxt").write_text(NET)
    with pytest.raises(EngineError, match="expected two names, one for the net and one for its weights"):
        import_keras("x.h5", tmp_path / "net.prototxt", "net.prototxt", onto=True)
    assert (tmp_path / "net.prototxt").read_text() == NET


@pytest.mark.parametrize("content", [b"", b"\x89HDF\r\n\x1a\n" + bytes(40), b"no HDF5"])
def test_a_damaged_file_is_one_line(content, tmp_path, capsys):
    (tmp_path / "x.h5").write_bytes(content)
    (tmp_path / "net.prototxt").write_text(NET)
    files = [str(tmp_path / name) for name in ("x.h5", "net.prototxt", "x.caffemodel")]
    assert main(["import", *files, "--onto"]) == 1
    assert capsys.readouterr().err.startswith(f"engine: {files[0]}: truncated or no HDF5 file (")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("other", "the archive has no model.weights.h5"),
        ("short", "truncated or no .keras archive ("),
        ("bomb", "model.weights.h5 in it is far larger than the archive"),
        ("text", "truncated or no HDF5 file ("),
    ],
)
def test_a_damaged_archive_is_one_line(damage, message, tmp_path, capsys):
    (tmp_path / "net.prototxt").write_text(NET)
    path = tmp_path / "x.keras"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        content = bytes(200 << 20) if damage == "bomb" else RANDOM.bytes(1000) if damage == "short" else b"no HDF5"
        archive.writestr("other.h5" if damage == "other" else "model.weights.h5", content)
    if damage == "short":  # in the member; the directory at the end is whole
        whole = bytearray(path.read_bytes())
        whole[100:140] = bytes(40)
        path.write_bytes(whole)
    assert main(["import", str(path), str(tmp_path / "net.prototxt"), str(tmp_path / "x.caffemodel"), "--onto"]) == 1
    assert capsys.readouterr().err.startswith(f"engine: {path}: {message}")
    assert not (tmp_path / "x.caffemodel").exists()
