"""LSTM and RNN, as a Scan over the steps: ONNX's own LSTM cannot begin a sequence anew in the middle of a batch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from engine.exchange.to_onnx.registry import Inexpressible, exports

if TYPE_CHECKING:
    from engine.exchange.onnx_writer import Writer
    from engine.layers.recurrent import Recurrent


@exports("LSTM")
def _lstm(out: Writer, layer: Recurrent, *bottoms: str) -> list[str]:
    """Writes an LSTM, whose gates are i, f, o, g: c = f c + i g, h = o tanh(c)."""

    def step(body: _Body, drive: str, kept: list[str]) -> list[str]:
        gates = body.op("Add", drive, body.op("MatMul", kept[0], of_h))
        i, f, o, g = body.ops("Split", 4, gates, axis=1, num_outputs=4)
        i, f, o = (body.op("Sigmoid", each) for each in (i, f, o))
        c = body.op("Add", body.op("Mul", f, kept[1]), body.op("Mul", i, body.op("Tanh", g)))
        return [body.op("Mul", o, body.op("Tanh", c)), c]

    of_h = _transposed(out, layer, -1)
    return _scan(out, layer, bottoms, step)


@exports("RNN")
def _rnn(out: Writer, layer: Recurrent, *bottoms: str) -> list[str]:
    """Writes an RNN: h = tanh(drive + W_hh h), o = tanh(W_ho h + b_o)."""

    def step(body: _Body, drive: str, kept: list[str]) -> list[str]:
        return [body.op("Tanh", body.op("Add", drive, body.op("MatMul", kept[0], of_h)))]

    of_h = _transposed(out, layer, -3)
    hidden, *states = _scan(out, layer, bottoms, step)
    y = out.op("MatMul", hidden, _transposed(out, layer, -2))
    return [out.op("Tanh", out.op("Add", y, out.params(layer)[-1])), *states]


def _transposed(out: Writer, layer: Recurrent, index: int) -> str:
    return out.constant(out.arrays(layer)[index].T)


class _Body:
    """Makes the graph of one step. Its nodes may read values of the graph around it."""

    def __init__(self, out: Writer):
        self.nodes, self._out = [], out

    def op(self, type: str, *inputs: str, **attributes: object) -> str:
        return self.ops(type, 1, *inputs, **attributes)[0]

    def ops(self, type: str, count: int, *inputs: str, **attributes: object) -> list[str]:
        outputs = [self._out.name(f"step/{type}") for _ in range(count)]
        self.nodes.append(self._out.onnx.helper.make_node(type, list(inputs), outputs, **attributes))
        return outputs


def _scan(out: Writer, layer: Recurrent, bottoms: tuple[str, ...], step) -> list[str]:
    """Writes the steps of a recurrent layer as a Scan.

    The states before the first step are bottoms of the layer, or zero: nothing is kept from one run to the next.

    Args:
        step: (body, drive, states) -> the states after a step. `drive` is what the layer's inputs add to the gates,
            and the states are 0 where a sequence begins.
    Returns:
        The first state after each step (T, N, H); and each state after the last step (1, N, H), if these are tops.
    """
    helper = out.onnx.helper
    x, cont, *others = bottoms
    steps, batch = out.dims(layer.bottoms[0])[:2]
    if batch is None:
        raise Inexpressible("a second axis that grows with the batch")
    params, units = out.params(layer), layer.param.num_output
    if len(layer.shapes[0]) > 3:
        x = out.reshape(x, [steps, batch, math.prod(layer.shapes[0][2:])])
    drive = out.op("Add", out.op("MatMul", x, _transposed(out, layer, 0)), params[1])
    if layer.has_static:
        rows = out.op("Flatten", others.pop(0), axis=1)
        drive = out.op("Add", drive, out.op("MatMul", rows, _transposed(out, layer, 2)))
    cont = out.op("Unsqueeze", cont, [2])  # (T, N, 1)
    first = [out.op("Squeeze", each, [0]) for each in others]
    first = first or [out.constant(np.zeros((batch, units), np.float32)) for _ in range(layer.states)]
    body = _Body(out)
    names = [out.name("step/state") for _ in first]
    drive_now, cont_now = out.name("step/drive"), out.name("step/cont")
    kept = [body.op("Mul", name, cont_now) for name in names]
    after = step(body, drive_now, kept)
    seen = body.op("Identity", after[0])
    info = [helper.make_tensor_value_info(name, 1, [batch, units]) for name in (*names, *after, seen)]
    inner = [
        helper.make_tensor_value_info(drive_now, 1, [batch, layer.gates * units]),
        helper.make_tensor_value_info(cont_now, 1, [batch, 1]),
    ]
    count = len(first)
    graph = helper.make_graph(body.nodes, f"{layer.name}/step", [*info[:count], *inner], info[count:])
    *last, every = out.ops("Scan", count + 1, *first, drive, cont, body=graph, num_scan_inputs=2)
    return [every, *(out.op("Unsqueeze", state, [0]) for state in last if layer.exposed)]
