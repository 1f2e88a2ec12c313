"""The base of all layers: a node of the graph that knows its blobs, its parameters, its shapes and the ops it becomes.

A layer type overrides `infer` (shapes), `make_params` (parameters), `attributes` (what its op needs to know) and,
only when it becomes anything other than one op of its own name, `lower`. It knows neither ranks nor data sources nor
other layers.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, TypeAlias, cast

from engine import proto
from engine.errors import ConfigError, shape_text

if TYPE_CHECKING:
    import numpy as np

    from engine.host._core import Tensor
    from engine.layers.builder import Builder
    from engine.layers.model_parallel import Part


Shape = tuple[int, ...]
RecurrentParam: TypeAlias = "proto.RecurrentParameter | proto.LSTMParameter"
SizedParam: TypeAlias = (
    "proto.ConvolutionParameter | proto.InnerProductParameter | proto.EmbedParameter | RecurrentParam"
)
# What an op can be told. A Callable(backward) is called when the op runs.
Attribute = int | float | str | Sequence[int] | Sequence[float] | Callable[[bool], None]
Attributes = dict[str, Attribute]

# Fields of parameters that many types have, and the type that reads them, as those do that are made of it; others
# refuse them.
FIELDS_OF_FEW = {
    "loss_param": {
        "positive_weight": "SigmoidCrossEntropyLoss",
        "negative_weight": "SigmoidCrossEntropyLoss",
        "label_smoothing": "SoftmaxWithLoss",
        "weight_by_label_freqs": "SoftmaxWithLoss",
        "class_weighting": "SoftmaxWithLoss",
    },
    "softmax_param": {
        "class_weight": "SoftmaxWithLoss",
        "pos_mult": "WeightedSoftmaxWithLoss",
        "pos_cid": "WeightedSoftmaxWithLoss",
    },
}

MOST_AXES, MOST_VALUES = 12, 2**31 - 1  # of a blob: axes as in oneDNN (Caffe takes 32), values as in Caffe
MOST_PIXELS = 2**31 - 1  # of a window along an axis: ops add two such numbers in 64 bits


@dataclass(eq=False)
class Blob:
    """An edge of the graph: one version of a named blob (a layer that works in place makes a new version)."""

    name: str
    shape: Shape = ()
    needs_gradient: bool = False
    gradient_is_set: bool = False  # by its loss_weight or by Python: what reads it sends none


@dataclass(eq=False)
class Parameter:
    """A learnable or statistical blob of a layer. `shape` is Caffe's, as in files."""

    shape: Shape
    filler: proto.FillerParameter | None = None  # None: zeros
    values: np.ndarray | None = None  # initial ones, of a layer that has them itself
    lr_mult: float = 1.0
    decay_mult: float = 1.0
    shared_name: str = ""
    statistics: bool = False  # BatchNorm's running sums: averaged over ranks, never updated by the solver
    frozen: bool = False  # never updated, whatever its lr_mult
    unread: bool = False  # only there because files have it, in any shape
    transposed: bool = False  # the op lays its values out by columns, whatever the shape says
    dims: Shape = ()  # under which an op asks oneDNN for a layout; () for ops that read a row-major array
    row_major: bool = False  # in memory as in files: those who share it ask for different layouts
    layer: str = ""
    where: str = ""  # the layer's place, file:line:column
    index: int = 0
    permissive: bool = False  # share_mode PERMISSIVE: only counts must match
    owner: Parameter | None = None  # the parameter that this one shares, if any
    part: int = 0  # which part of the whole, along the first axis, this rank holds
    parts: int = 1
    bounds: tuple[float, float] = (-math.inf, math.inf)  # the least and the most that an update leaves

    @property
    def name(self) -> str:
        return f"{self.layer}[{self.index}]"

    @property
    def learnable(self) -> bool:
        return self.lr_mult != 0 and not (self.statistics or self.frozen)

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def whole_shape(self) -> Shape:
        """Caffe's, of all parts together: as in files."""
        return (self.parts * self.shape[0], *self.shape[1:]) if self.parts > 1 else self.shape

    def part_of(self, whole: np.ndarray) -> np.ndarray:
        """What this rank holds of an array of whole_shape."""
        return whole[self.part * self.shape[0] :][: self.shape[0]] if self.parts > 1 else whole


@dataclass(eq=False)
class Misfit:
    """Of a layer that does not fit what its bottoms have become in a net that was built again: why, and what it was in
    the last net that it fitted into. Its tops and parameters keep their shapes, and a run that comes to it raises."""

    error: ConfigError
    before: Layer


@dataclass(eq=False)
class Layer:
    """A node. `message` is what the text says of it, `where` its "file:line:column" for errors, `phase` TRAIN (0) or
    TEST (1).
    """

    message: proto.LayerParameter
    where: str
    phase: int
    bottoms: list[Blob] = field(default_factory=list)
    tops: list[Blob] = field(default_factory=list)
    params: list[Parameter] = field(default_factory=list)
    loss_weights: list[float] = field(default_factory=list)  # one per top; 0 where the top is no loss
    constant = False  # True in nets that are only tested: parameters do not change between forwards
    net: proto.NetParameter = field(default_factory=proto.NetParameter)  # speaks of all layers of a type, too

    # How many bottoms and tops the type takes (None: any number), for errors that say so.
    bottom_range: ClassVar[tuple[int, int | None]] = (1, 1)
    top_range: ClassVar[tuple[int, int | None]] = (1, 1)
    # False for types that have no backward (Accuracy, ArgMax); data layers have no bottoms and so need none.
    differentiable = True
    # True for types whose bottoms are read by whoever runs the net, after every forward.
    is_sink: ClassVar[bool] = False
    # Tensors that lower() has made whose values stay until the layer writes others.
    persistent: Sequence[Tensor] = ()
    # Whether the layer's ops take bf16 bottoms and give bf16 tops; others run in float32, whatever the net's precision.
    bf16 = False
    # Of those that do: which bottoms stay float32 all the same, and whether all tops do.
    wide_bottoms: ClassVar[frozenset[int]] = frozenset()
    wide_tops: ClassVar[bool] = False
    widens = False  # whether they are float32 in this net, for readers that take nothing else: see can_widen
    # Bottoms of which only the shape is read.
    shape_bottoms: ClassVar[frozenset[int]] = frozenset()
    # Those fields of FIELDS_OF_FEW that the type reads.
    own_fields: ClassVar[frozenset[str]] = frozenset()
    # Whether NaN in a bottom stands for what nobody knows.
    takes_nan: ClassVar[bool] = False
    # Whether each top is made of the bottom of its number alone; whether the first top alone has a gradient, and the
    # others, as those of losses, tell of it.
    in_pairs: ClassVar[bool] = False
    tells_more: ClassVar[bool] = False
    # Of types that compare scores, their first bottom, with labels, the second: the type of the layer that makes
    # probabilities of the scores, "Softmax" where one class is right, "Sigmoid" where each label is there or not.
    probabilities: ClassVar[str] = ""
    # Of the latter: whether labels are above 0 for those that are there and below 0 for those that are not, and 0 where
    # they do not count; else they are 1 and 0.
    signed_labels: ClassVar[bool] = False
    # Whether the type only says how good others are, or what to learn from: of no use where there are no labels.
    is_measure: ClassVar[bool] = False
    # Whether a loss's gradient is the sum over a batch, not the mean; whether the rows of a layer without bottoms are
    # steps of time, not samples.
    sums_batch: ClassVar[bool] = False
    rows_are_steps: ClassVar[bool] = False
    # Bottoms into which no gradient flows (labels).
    constant_bottoms: ClassVar[frozenset[int]] = frozenset()

    part: Part | None = field(default=None, init=False)  # of a layer that several ranks hold together
    misfit: Misfit | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        return self.message.name

    @property
    def type(self) -> str:
        return self.message.type

    @property
    def is_loss(self) -> bool:
        """Whether the op takes its top's loss_weight itself, 1 where the text gives none."""
        return self.type.endswith("Loss")

    @property
    def asked_axis(self) -> int:
        """Of the classes, as the text gives it, of Softmax and of types whose `probabilities` are one."""
        return 1

    @property
    def smallest_is_best(self) -> bool:
        """Of the scores that it compares with labels."""
        return False

    @property
    def ignored_label(self) -> int | None:
        """The label that does not count, of types that compare scores with labels."""
        return None

    @property
    def named_tops(self) -> list[Blob]:
        """Those that the text names: a loss that it leaves out has a top all the same."""
        return self.tops[: len(self.message.top)]

    @property
    def remembers(self) -> bool:
        """Whether a forward leaves anything behind but its tops, so that repeating it is not the same."""
        return self.is_sink or self.goes_on

    @property
    def goes_on(self) -> bool:
        """Whether the tops of a batch depend on the batches before it."""
        return False

    @property
    def rescales_weights(self) -> bool:
        """Whether a forward brings rows of the weights to length 1, where they are."""
        return False

    @property
    def learns(self) -> bool:
        """Whether updates change one of its parameters."""
        return any((parameter.owner or parameter).learnable for parameter in self.params)

    @property
    def training(self) -> bool:
        return self.phase == 0

    @property
    def shapes(self) -> list[Shape]:
        """Shapes of the bottoms."""
        return [blob.shape for blob in self.bottoms]

    @property
    def keeps_kernels(self) -> bool:
        """Whether no kernel may be chosen for it but those of the rules of thumb."""
        return False

    @property
    def can_widen(self) -> bool:
        """Whether its ops can give float32 tops of bf16 bottoms."""
        return False

    @property
    def takes_rows(self) -> bool:
        """Whether its ops read bottoms row by row, in row-major order; others may want images with channels last, or
        as they are."""
        return False

    def infer(self) -> list[Shape]:
        """Shapes of the tops, from `self.shapes`. Raises ConfigError (through `self.error`) when they do not fit."""
        raise NotImplementedError

    def make_params(self) -> list[Parameter]:
        """Parameters, after shapes are known. Multipliers from `param {}` are filled in by the graph."""
        return []

    def attributes(self) -> Attributes:
        """What the op of this type needs to know: ints, floats, strings, lists of ints or floats."""
        return {}

    def lower(self, builder: Builder) -> None:
        """Adds the ops. The default is one op with the type's name: bottoms in, tops out."""
        inputs = [builder.tensor(blob) for blob in self.bottoms]
        builder.op(self.type, self, inputs, self.attributes())

    def lower_misfit(self, builder: Builder) -> None:
        """Adds the op of a misfit."""
        error = cast(Misfit, self.misfit).error

        def run(backward: bool) -> None:
            raise error.with_traceback(None)

        inputs = [builder.tensor(blob) for blob in self.bottoms]
        builder.op("Python", self, inputs, {"run": run, "loss_weight": float(any(self.loss_weights))}, params=[])
        builder.hold(self.params)

    def reached_from(self, top: int) -> Collection[int]:
        """The bottoms that the gradient of a top flows into."""
        if self.in_pairs:
            return (top,)
        return () if top > 0 and (self.is_loss or self.tells_more) else range(len(self.bottoms))

    def propagates(self, i: int) -> bool:
        """Whether a gradient may flow into a bottom: it is no label, and propagate_down does not forbid it."""
        flags = self.message.propagate_down
        return i not in self.constant_bottoms and (flags[i] if flags else True)

    def summed_params(self) -> list[Parameter]:
        """Parameters whose gradients are sums over several ops of this layer."""
        return []

    def feed(self, step: int, seed: int, first_sample: int | None = None) -> dict[Blob, np.ndarray]:
        """Values of the tops for this step, for layers that generate their own (DummyData); {} keeps the previous
        ones. first_sample: the number of the batch's first sample in the whole training, where that is known."""
        return {}

    def succeed(self, before: Layer) -> None:
        """Called before infer() when the net is rebuilt in other shapes. before: this layer of the old net."""

    def absorb(self, following: Layer) -> bool:
        """Called by the fusion pass with the only reader of this layer's top; True if this layer has taken over its
        work."""
        return False

    def flops(self) -> int:
        """Floating-point operations of one forward pass (a multiply-add counts two)."""
        return sum(math.prod(top.shape) for top in self.tops)

    def error(self, message: str, details: str = "", kind: type[ConfigError] = ConfigError) -> ConfigError:
        """Returns the exception to raise, of that `kind`. details: further lines."""
        return kind(f"layer '{self.name}' ({self.type}): {message}", self.where, details)

    def check_above_zero(self, param: SizedParam, *fields: str) -> None:
        """Raises ConfigError for a field of the layer's parameters that is 0, or not there."""
        for name in fields:
            if getattr(param, name) == 0:
                missing = f"{name} is missing; give it, a number above 0"
                raise self.error(f"expected {name} above 0, got 0" if param.HasField(name) else missing)

    def check_blob(self, what: str, shape: Shape) -> None:
        """Raises ConfigError unless a blob can have this shape. what: the blob, in the message's words."""
        count = math.prod(shape, start=1.0)  # a float, which does not wrap where dims are NumPy's
        if count <= MOST_VALUES and len(shape) <= MOST_AXES and (not shape or min(shape) > 0):
            return
        raise self.error(
            f"{what} would be {shape_text(shape)}; expected {MOST_AXES} axes at most, none of them empty, "
            f"and {MOST_VALUES} values at most"
        )

    def check_window(self, name: str, sizes: Sequence[int]) -> None:
        """Raises ConfigError if a size of a window, which fields hold without a sign, is too large for the ops."""
        if max(sizes) > MOST_PIXELS:
            raise self.error(f"expected {name} of at most {MOST_PIXELS}, got {max(sizes)}")

    @contextlib.contextmanager
    def arithmetic(self) -> Iterator[None]:
        """Within it, a parameter's value with which nothing can be computed is a ConfigError: it is too large for a
        float or a field, or a logarithm has no value."""
        try:
            yield
        except (ArithmeticError, ValueError) as error:
            raise self.error(f"its parameters cannot be computed with: {error}") from error

    def canonical_axis(self, axis: int, rank: int) -> int:
        """Negative axes count from the end, as in Python. Raises ConfigError when out of range."""
        if not -rank <= axis < rank:
            raise self.error(f"axis {axis} is out of range for a blob of {rank} axes")
        return axis % rank
