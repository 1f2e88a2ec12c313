"""Imports torchvision's classifiers with random weights: engine computes the same, and exports the same weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine.config import read_net
from engine.errors import EngineError
from engine.exchange.onnx_export import export_onnx
from engine.exchange.torch_export import export_torch
from engine.exchange.torch_import import import_torch
from tests.exchange import harness
from tests.exchange.test_onnx_nets import deployed
from tests.mpi import REPO

torch = pytest.importorskip("torch")
try:
    import torchvision
except (ImportError, RuntimeError):  # RuntimeError: built for another torch
    pytest.skip("needs a torchvision that fits torch", allow_module_level=True)

# The smallest model of each family, and others where they differ -> height and width of images in these tests.
MODELS = {
    "resnet18": 64,
    "resnet50": 64,
    "resnext50_32x4d": 64,
    "vgg11": 224,  # its first inner product holds the size fixed
    "vgg16_bn": 224,
    "densenet121": 64,
    "googlenet": 96,
    "inception_v3": 107,
    "mobilenet_v2": 64,
}


def model(name: str):
    """Returns a model with few classes, and with random running statistics."""
    torch.manual_seed(7)
    options = {"num_classes": 10} | (
        {"init_weights": False} if name in ("googlenet", "inception_v3", "vgg11", "vgg16") else {}
    )
    found = getattr(torchvision.models, name)(weights=None, **options).eval()
    if name.startswith("vgg"):  # its 100 million weights would test no more than these
        found.classifier[0] = torch.nn.Linear(512 * 7 * 7, 32)
        found.classifier[3] = torch.nn.Linear(32, 32)
        found.classifier[6] = torch.nn.Linear(32, 10)
        found.eval()
    for module in found.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
            module.weight.data.uniform_(0.5, 1.5)
            module.bias.data.normal_(0, 0.1)
    return found


def shrunk(path: Path, side: int) -> str:
    """Returns the text of the net in a file for images of that height and width."""
    text = path.read_text()
    full = 299 if "dim: 299" in text else 224
    return text.replace(f"dim: {full}", f"dim: {side}")


@pytest.mark.parametrize("name", MODELS)
def test_engine_computes_what_torchvision_does(name, tmp_path):
    source, net, weights = tmp_path / "x.pth", tmp_path / "x.prototxt", tmp_path / "x.caffemodel"
    theirs = model(name)
    torch.save(theirs.state_dict(), source)
    import_torch(source, net, weights, batch_size=2)
    side = MODELS[name]
    pictures = harness.random_inputs({"data": (2, 3, side, side)})
    text = shrunk(net, side)
    found = harness.engine_outputs(text, str(weights), pictures)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(pictures["data"])).numpy()
    last = text.rpartition('name: "')[2].partition('"')[0]
    assert np.ptp(expected) > 1e-2, "a test of something"
    harness.assert_close(found[last], expected)
    # The same through ONNX.
    (tmp_path / "small.prototxt").write_text(text)
    if harness.has_runtime():
        export_onnx(read_net(tmp_path / "small.prototxt"), str(weights), tmp_path / "x.onnx", fold=True)
        harness.assert_close(harness.onnx_outputs(tmp_path / "x.onnx", pictures)[last], expected)
    # Back to PyTorch: torch.load has to take the file with weights_only, and the model all that it has but auxiliary
    # classifiers.
    for back in ("back.pth", "back.safetensors"):
        export_torch(read_net(net), str(weights), tmp_path / back)
    state = torch.load(tmp_path / "back.pth", weights_only=True)
    original = {k: v for k, v in theirs.state_dict().items() if not k.startswith(("aux", "AuxLogits"))}
    assert set(state) == set(original)
    for key, tensor in state.items():
        if not key.endswith("num_batches_tracked"):
            torch.testing.assert_close(tensor, original[key], rtol=1e-6, atol=1e-7)
    theirs.load_state_dict(
        state, strict=not any(k.startswith("aux") or k.startswith("Aux") for k in theirs.state_dict())
    )
    import_torch(
        tmp_path / "back.safetensors", tmp_path / "again.prototxt", tmp_path / "again.caffemodel", batch_size=2
    )
    assert (tmp_path / "again.prototxt").read_text() == net.read_text()


def test_weights_go_onto_a_shipped_net(tmp_path):
    """The layers of the shipped VGG-16 have other names than torchvision's."""
    theirs = model("vgg16")
    torch.save(theirs.state_dict(), tmp_path / "x.pth")
    text = (REPO / "nets/vgg16.prototxt").read_text()
    text = text.replace("num_output: 1000", "num_output: 10").replace("num_output: 4096", "num_output: 32")
    (tmp_path / "net.prototxt").write_text(text)
    import_torch(tmp_path / "x.pth", tmp_path / "net.prototxt", tmp_path / "x.caffemodel", onto=True)
    small, shapes = deployed(text, 1)
    pictures = harness.random_inputs(shapes)
    found = harness.engine_outputs(small, str(tmp_path / "x.caffemodel"), pictures)
    with torch.no_grad():
        expected = torch.softmax(theirs(torch.from_numpy(pictures["data"])), 1).numpy()
    harness.assert_close(found["prob"], expected)


def test_a_shipped_net_that_computes_something_else_is_refused(tmp_path):
    """torchvision's first pooling has padding, that of nets/resnet50.prototxt has none."""
    torch.save(model("resnet50").state_dict(), tmp_path / "x.pth")
    text = (REPO / "nets/resnet50.prototxt").read_text().replace("num_output: 1000", "num_output: 10")
    (tmp_path / "net.prototxt").write_text(text)
    with pytest.raises(EngineError, match=r"that net's layer 'pool1' \(Pooling\) computes"):
        import_torch(tmp_path / "x.pth", tmp_path / "net.prototxt", tmp_path / "x.caffemodel", onto=True)


def test_a_file_from_before_the_zip_format(tmp_path):
    theirs = model("resnet18")
    torch.save(theirs.state_dict(), tmp_path / "new.pth")
    torch.save(
        {"state_dict": theirs.state_dict(), "epoch": 3}, tmp_path / "old.pth", _use_new_zipfile_serialization=False
    )
    nets = []
    for name in ("new", "old"):
        import_torch(tmp_path / f"{name}.pth", tmp_path / f"{name}.prototxt", tmp_path / f"{name}.caffemodel")
        nets.append((tmp_path / f"{name}.caffemodel").read_bytes())
    assert nets[0] == nets[1]


def test_a_whole_model_is_refused(tmp_path):
    torch.save(torch.nn.Linear(2, 3), tmp_path / "x.pth")
    with pytest.raises(EngineError, match=r"would run code, and is not read: it names torch\.nn.*Linear; save the"):
        import_torch(tmp_path / "x.pth", tmp_path / "x.prototxt", tmp_path / "x.caffemodel")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.pth"]
