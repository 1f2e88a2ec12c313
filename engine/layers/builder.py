"""The Builder: what a layer's `lower` is given while the graph becomes a program, to find tensors and to add ops."""

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
    """Adds the ops of one net to its program.

    Attributes:
        asked: the ops whose kernels can be chosen.
        tensors: of blobs.
        params: tensors of parameters, by their owners.
        taken: the parameters whose tensors are another program's.
        lent: of these tensors, those that have a gradient of this net's own.
        inputs: the tensors that are fed from outside.
        op_params, layer_of_op, type_of_op: for each op the owners of its parameters, its layer, and its type.
    """

    def __init__(
        self,
        program: Program,
        shared: dict[tuple[str, int], Tensor] | None = None,
        summed: Collection[Parameter] = (),
        plain_parameters: bool = False,
        kernels: Choices = MappingProxyType({}),
        own_gradients: bool = False,
    ):
        """
        Args:
            shared: (layer name, index) of parameters -> tensors of another program: a test net reads the train net's.
            summed: the parameters to whose gradients several ops add.
            plain_parameters: whether parameters are row-major.
            kernels: the chosen kernels, by the keys of ops.
            own_gradients: whether shared parameters have gradients of their own here, and only the values in common.
        """
        self.program = program
        self.shared = shared or {}
        self.summed = summed
        self.plain_parameters = plain_parameters
        self.kernels = kernels
        self.own_gradients = own_gradients
        self.asked: list[Asked] = []
        self.tensors: dict[Blob, Tensor] = {}
        self.params: dict[Parameter, Tensor] = {}
        self.taken: set[Parameter] = set()
        self.lent: list[Tensor] = []
        self.inputs: dict[Blob, Tensor] = {}
        self.op_params: list[list[Parameter]] = []
        self.layer_of_op: list[Layer] = []
        self.type_of_op: list[str] = []

    def tensor(self, blob: Blob) -> Tensor:
        """Returns the tensor of a blob that an earlier layer made, without its gradient if no reader is to write it."""
        tensor = self.tensors[blob]
        return tensor.without_diff() if blob.gradient_is_set else tensor

    def set(self, blob: Blob, tensor: Tensor) -> None:
        self.tensors[blob] = tensor

    def input(self, blob: Blob) -> Tensor:
        """Makes the tensor of a blob that is fed from outside (data, labels): float32, row-major. It is attached to the
        caller's memory before each run."""
        tensor = self.program.input(blob.name, list(blob.shape), blob.needs_gradient)
        self.inputs[blob] = self.tensors[blob] = tensor
        return tensor

    def parameter(self, parameter: Parameter) -> Tensor:
        """Returns the tensor of a parameter, one for all that share it."""
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
                    tensor.diff.accumulate = owner in self.summed  # the first of its ops needs to know
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
        """Adds an op and returns its outputs. Raises EngineError with the layer's place if the op cannot be made.

        Args:
            params, tops: the layer's by default. `tops=[]` with `shapes` makes intermediate tensors of no blob.
            shapes: those of the outputs; by default those of the tops.
            gradients: which outputs get one; by default the tops that need one or, of intermediate tensors, those that
                something learns from.
        """
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
        """Makes the last op count as the reader of these parameters, though it does not read them."""
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
        """Returns the key of an op whose kernels can be chosen; "" for other ops."""
        if not any(
            len(kernels) > 1 for kernels in candidates(type, inputs[0].dtype if inputs else "", attributes).values()
        ):
            return ""
        return key_of(type, inputs, params, attributes, shapes[0], any(gradients), self.plain_parameters)

    def plain(self, layer: Layer, tensor: Tensor) -> Tensor:
        """Returns the tensor in row-major order. Adds a reorder only if it is blocked."""
        if tensor.is_plain:
            return tensor
        return self.op("Plain", layer, [tensor], params=[], tops=[], shapes=[tensor.shape])[0]

    def plain_bottoms(self, layer: Layer) -> list[Tensor]:
        """Returns all bottoms of the layer in row-major order: see plain()."""
        return [self.plain(layer, self.tensor(blob)) for blob in layer.bottoms]

    def by_sample(self, layer: Layer, tensor: Tensor) -> Tensor:
        """Returns the tensor with its samples one after the other, each in any order. Adds a reorder only if samples
        are interleaved."""
        return tensor if tensor.layout[:1] in ("a", "A") else self.plain(layer, tensor)

    def view(self, layer: Layer, tensor: Tensor, shape: Shape, top: Blob | None = None) -> Tensor:
        """Returns the same values in another shape of the same count. top: the blob whose tensor this becomes, if it is
        the layer's result."""
        plain = self.plain(layer, tensor)
        tops = [top] if top else []
        return self.op("View", layer, [plain], params=[], tops=tops, shapes=[shape])[0]
