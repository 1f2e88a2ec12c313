import numpy as np

from tests.layers.harness import check_golden, golden, run


@golden("silence")
def test_golden(case):
    check_golden(case)


def test_silenced_blobs_are_no_outputs_and_give_no_gradient():
    text = """
    layer { name: "ip" type: "InnerProduct" bottom: "x" top: "s" inner_product_param { num_output: 3 } }
    layer { name: "quiet" type: "Silence" bottom: "s" bottom: "l" }
    layer { name: "loss" type: "SoftmaxWithLoss" bottom: "s" bottom: "l" top: "loss" }
    """
    net = run(text, x=np.ones((2, 4), np.float32), l=np.zeros(2, np.float32))
    assert list(net.outputs()) == ["loss"]
    net.backward()
    expected = np.outer([-2 / 3, 1 / 3, 1 / 3], np.ones(4))  # the gradient of the loss alone
    np.testing.assert_allclose(net.params["ip"][0].diff.get(), expected, atol=1e-6)
