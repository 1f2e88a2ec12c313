"""Each layer computes the figures of BVLC Caffe, through caffe.Net and its arrays."""

import numpy as np
import pytest

import engine.caffe as caffe
from tests.caffe.nets import write
from tests.shared import SHARED, needs_shared

GOLDEN = SHARED / "golden/layers"
CASES = sorted(path.stem for path in GOLDEN.glob("*.npz"))

pytestmark = needs_shared("golden/layers")


def named(arrays, prefix):
    """Returns the arrays whose names begin with the prefix, by the rest of the name."""
    found = {key[len(prefix) :]: values for key, values in arrays.items() if key.startswith(prefix)}
    return {name: values for name, values in found.items() if not name.startswith("diff_")}


def same(what, ours, theirs):
    assert ours.shape == theirs.shape, what
    atol = 2e-4 * max(1.0, np.abs(theirs).max(initial=0))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=atol, err_msg=what)


@pytest.mark.parametrize("case", CASES)
def test_layer(case, tmp_path):
    arrays = dict(np.load(GOLDEN / f"{case}.npz"))
    net = caffe.Net(write(tmp_path, str(arrays["prototxt"])), getattr(caffe, str(arrays["phase"])))
    params = net.params.get("layer", [])
    for name, values in named(arrays, "bottom_").items():
        net.blobs[name].data[...] = values
    for i, blob in enumerate(params):
        blob.data[...] = arrays[f"param_{i}"]
    net.forward()
    for name, values in named(arrays, "top_").items():
        same(f"top {name}", net.blobs[name].data, values)
    for i, blob in enumerate(params):
        same(f"parameter {i}", blob.data, arrays[f"param_after_{i}"])
    gradients = named(arrays, "bottom_diff_")
    if not gradients:
        return
    for name, values in named(arrays, "top_diff_").items():
        net.blobs[name].diff[...] = values
    net.backward()
    for name, values in gradients.items():
        same(f"gradient of {name}", net.blobs[name].diff, values)
    for i, blob in enumerate(params):
        if f"param_diff_{i}" in arrays:
            same(f"gradient of parameter {i}", blob.diff, arrays[f"param_diff_{i}"])
