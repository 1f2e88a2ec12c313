import numpy as np
import pytest

from engine.host import _core

REFUSED = r"an empty axis or too many values|more values than can be counted"


@pytest.mark.parametrize("shape", [[0], [3, 0, 2], [-1], [2**63 - 1], [2**31, 2**31, 4], [2**40] * 32])
def test_shapes_that_no_tensor_has(shape):
    """The graph refuses them earlier, with the line of the text. This check is the last line of defence."""
    program = _core.Program(True)
    with pytest.raises(ValueError, match=REFUSED):
        program.input("x", shape)
    with pytest.raises(ValueError, match=REFUSED):
        program.parameter("w", shape, True)
    x = program.input("x", [2])
    with pytest.raises(ValueError, match=REFUSED):
        program.op("Python", "p", [x], [], {"run": print}, [shape], [False])


def test_without_diff():
    x = _core.Program(True).input("x", [3], True)
    values = np.array([1, 2, 3], np.float32)
    x.attach(values)
    seen = x.without_diff()
    assert x.diff is not None and seen.diff is None
    np.testing.assert_array_equal(seen.get(), values)
    other = np.array([4, 5, 6], np.float32)
    x.attach(other)
    np.testing.assert_array_equal(seen.get(), other)
