"""What a layer's `lower` sees while the graph becomes a program: tensors of blobs, parameters, a way to add ops."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from engine.errors import EngineError
from engine.layers.base import Attribute, Blob, Layer, Parameter, Shape
from engine.layers.kernels import PASSES, Asked, Choices, candidates, key_of

if TYPE_CHECKING:
    from engine.host._core import Program, Tensor


class Builder:
    """Collects the ops of one net. shared: (layer name, index) of parameters -> tensors of an earlier program: a test
    net reads the train net's weights. summed: parameters with several writers, each of which adds to the gradient."""

    def __init__(
        self,
        program: Program,
        shared: dict[tuple[str, int], Tensor] | None = None,
        summed: Collection[Parameter] = (),
        plain_parameters: bool = False,
        kernels: Choices = MappingProxyType({}),
        own_gradients: bool = False,
    ):
        """kernels: those that are chosen. own_gradients: shared parameters have their values alone in common."""
        self.program = program
        self.shared = shared or {}
        self.summed = summed
        self.plain_parameters = plain_parameters
        self.kernels = kernels
        self.own_gradients = own_gradients
        self.asked: list[Asked] = []  # the ops whose kernels can be chosen
        self.tensors: dict[Blob, Tensor] = {}
        self.params: dict[Parameter, Tensor] = {}
        self.taken: set[Parameter] = set()  # of the shared
        self.lent: list[Tensor] = []  # of the shared, those with a gradient of this net's own
        self.inputs: dict[Blob, Tensor] = {}
        self.op_params: list[list[Parameter]] = []  # owners, op by op
        self.layer_of_op: list[Layer] = []
        self.type_of_op: list[str] = []

    def tensor(self, blob: Blob) -> Tensor:
        """The tensor of a blob that an earlier layer made; without its gradient where its reader is to send none."""
        tensor = self.tensors[blob]
        return tensor.without_diff() if blob.gradient_is_set else tensor

    def set(self, blob: Blob, tensor: Tensor) -> None:
        self.tensors[blob] = tensor

    def input(self, blob: Blob) -> Tensor:
        """A blob that comes from outside (data, labels): float32, row-major, pointed at the caller's memory before
        each run."""
        tensor = self.program.input(blob.name, list(blob.shape), blob.needs_gradient)
        self.inputs[blob] = self.tensors[blob] = tensor
        return tensor

    def parameter(self, parameter: Parameter) -> Tensor:
        """The tensor of a parameter, one for all that share it."""
        owner = parameter.owner or parameter
        if owner not in self.params:
            known = self.shared.get((owner.layer, owner.index))
            if known is not None:
                if owner.frozen:
                    known = known.without_diff()
                elif self.own_gradients and known.diff is not None:
                    known = known.with_own_diff()
                    known.diff.accumulate = owner in self.summed
                    self.lent.append(known)
                self.program.share(known)
                self.params[owner] = known
                self.taken.add(owner)
            else:
                tensor = self.program.parameter(owner.name, list(owner.shape), owner.learnable)
                if tensor.diff is not None:
                    tensor.diff.accumulate = owner in self.summed  # known before the first of its ops is built
                if self.plain_parameters or owner.row_major:
                    tensor.decide_plain()
                self.params[owner] = tensor
        return self.params[owner]

    def op(
        self,
        type: str,
        layer: Layer,
        inputs: list[Tensor],
        attributes: Mapping[str, Attribute] | None = None,
        *,
        params: list[Parameter] | None = None,
        tops: list[Blob] | None = None,
        shapes: Sequence[Shape] | None = None,
        gradients: Sequence[bool] | None = None,
    ) -> list[Tensor]:
        """Adds an op and returns its outputs. By default its params and tops are the layer's; `shapes` overrides the
        shapes that the op sees (a view of the top), `tops=[]` with `shapes` makes intermediate tensors that belong to
        no blob; `gradients` overrides which outputs get one."""
        params = layer.params if params is None else params
        tops = layer.tops if tops is None else tops
        shapes = [blob.shape for blob in tops] if shapes is None else shapes
        tensors = [self.parameter(parameter) for parameter in params]
        if gradients is None and tops:
            gradients = [blob.needs_gradient for blob in tops]
        elif gradients is None:
            learns = bool(params) and any(blob.needs_gradient for blob in layer.tops)
            gradients = [learns or any(t.diff is not None for t in inputs)] * len(shapes)
        attributes = dict(attributes or {})
        key = "" if layer.keeps_kernels else self._key(type, inputs, tensors, attributes, shapes, gradients)
        attributes |= self.kernels.get(key, {})
        try:
            outputs = self.program.op(
                type, layer.name, inputs, tensors, attributes, [list(s) for s in shapes], gradients
            )
        except EngineError:
            raise
        except (RuntimeError, ValueError) as error:
            raise EngineError(f"layer '{layer.name}' ({type}): {error}", layer.where) from error
        if key:
            choice = {name: str(attributes[name]) for name in PASSES if name in attributes}
            trains, plain = any(gradients), self.plain_parameters
            self.asked.append(
                Asked(layer.name, key, type, inputs, tensors, attributes, shapes[0], outputs[0], trains, choice, plain)
            )
        self.op_params.append([parameter.owner or parameter for parameter in params])
        self.layer_of_op.append(layer)
        self.type_of_op.append(type)
        for blob, tensor in zip(tops, outputs, strict=False):
            self.tensors[blob] = tensor
        return outputs

    def hold(self, params: list[Parameter]) -> None:
        """Of the last op, which reads them as far as others can tell."""
        for parameter in params:
            self.parameter(parameter)
        self.op_params[-1] = [parameter.owner or parameter for parameter in params]

    def _key(
        self,
        type: str,
        inputs: list[Tensor],
        params: list[Tensor],
        attributes: Mapping[str, Attribute],
        shapes: Sequence[Shape],
        gradients: Sequence[bool],
    ) -> str:
        """Of an op whose kernels can be chosen; "" for all others."""
        if not any(
            len(kernels) > 1 for kernels in candidates(type, inputs[0].dtype if inputs else "", attributes).values()
        ):
            return ""
        return key_of(type, inputs, params, attributes, shapes[0], any(gradients), self.plain_parameters)

    def plain(self, layer: Layer, tensor: Tensor) -> Tensor:
        """The tensor in row-major order; adds a reorder only if it is blocked."""
        if tensor.is_plain:
            return tensor
        return self.op("Plain", layer, [tensor], params=[], tops=[], shapes=[tensor.shape])[0]

    def plain_bottoms(self, layer: Layer) -> list[Tensor]:
        """All bottoms of the layer in row-major order, as plain() has each."""
        return [self.plain(layer, self.tensor(blob)) for blob in layer.bottoms]

    def by_sample(self, layer: Layer, tensor: Tensor) -> Tensor:
        """The tensor with its samples one after the other, each in whatever order; adds a reorder only if they lie in
        each other."""
        return tensor if tensor.layout[:1] in ("a", "A") else self.plain(layer, tensor)

    def view(self, layer: Layer, tensor: Tensor, shape: Shape, top: Blob | None = None) -> Tensor:
        """The same values under another shape of the same count; of the blob `top` when it is the layer's result."""
        plain = self.plain(layer, tensor)
        tops = [top] if top else []
        return self.op("View", layer, [plain], params=[], tops=tops, shapes=[shape])[0]
