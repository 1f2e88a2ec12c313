"""The base of all layers: a node of the graph that knows its blobs, its parameters, its shapes and the ops it becomes.

A layer type overrides `infer` (shapes), `make_params` (parameters) and `attributes` (what its op needs to know). Only
if it becomes something else than one op of the type's name does it override `lower`. It knows neither ranks nor data
sources nor other layers.
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
# The values of an op's attributes. A Callable(backward) is called when the op runs.
Attribute = int | float | str | Sequence[int] | Sequence[float] | Callable[[bool], None]
Attributes = dict[str, Attribute]

# Messages that many types have, with those of their fields that only one type reads, and types derived from it. Other
# types refuse these fields: see own_fields.
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

MOST_AXES, MOST_VALUES = 12, 2**31 - 1  # limits of a blob: axes as in oneDNN (Caffe takes 32), values as in Caffe
MOST_PIXELS = 2**31 - 1  # limit of a window along an axis: ops add two such numbers in 64 bits


@dataclass(eq=False)
class Blob:
    """An edge of the graph: one version of a named blob (a layer that works in place makes a new version)."""

    name: str
    shape: Shape = ()
    needs_gradient: bool = False
    gradient_is_set: bool = False  # by its loss_weight or by Python, not by a reader


@dataclass(eq=False)
class Parameter:
    """A blob of a layer that learns, or that holds statistics. `shape` is Caffe's, as in files."""

    shape: Shape
    filler: proto.FillerParameter | None = None  # None: zeros
    values: np.ndarray | None = None  # initial values, of a layer that gives them itself
    lr_mult: float = 1.0
    decay_mult: float = 1.0
    shared_name: str = ""
    statistics: bool = False  # BatchNorm's running sums: averaged over ranks, never updated by the solver
    frozen: bool = False  # never updated, whatever its lr_mult
    unread: bool = False  # no op reads it; it is there because files have it, in any shape
    transposed: bool = False  # the op lays its values out by columns, whatever the shape says
    dims: Shape = ()  # the dims with which an op asks oneDNN for a layout; () for ops that read a row-major array
    row_major: bool = False  # in memory as in files, because layers that share it ask for different layouts
    layer: str = ""
    where: str = ""  # the layer's place, file:line:column
    index: int = 0
    permissive: bool = False  # share_mode PERMISSIVE: only counts must match
    owner: Parameter | None = None  # the parameter that this one shares, if any
    part: int = 0  # which part of the whole, along the first axis, this rank holds
    parts: int = 1
    bounds: tuple[float, float] = (-math.inf, math.inf)  # an update clamps values to these

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
        """Caffe's shape of all parts together, as in files."""
        return (self.parts * self.shape[0], *self.shape[1:]) if self.parts > 1 else self.shape

    def part_of(self, whole: np.ndarray) -> np.ndarray:
        """Returns this rank's part of an array of whole_shape."""
        return whole[self.part * self.shape[0] :][: self.shape[0]] if self.parts > 1 else whole


@dataclass(eq=False)
class Misfit:
    """What a layer is that does not fit the shapes of its bottoms, in a net that was built again in other shapes. Its
    tops and parameters keep their shapes, and a run that comes to it raises `error`.

    before: this layer of the last net in which it fitted."""

    error: ConfigError
    before: Layer


@dataclass(eq=False)
class Layer:
    """A node of the graph. message: the layer's text. where: its "file:line:column", for errors. phase: TRAIN (0) or
    TEST (1). The class attributes below describe a layer type."""

    message: proto.LayerParameter
    where: str
    phase: int
    bottoms: list[Blob] = field(default_factory=list)
    tops: list[Blob] = field(default_factory=list)
    params: list[Parameter] = field(default_factory=list)
    loss_weights: list[float] = field(default_factory=list)  # one per top; 0 where the top is no loss
    constant = False  # True in nets that are only tested: parameters do not change between forwards
    net: proto.NetParameter = field(default_factory=proto.NetParameter)  # has fields for all layers of a type, too

    # The least and the largest number of bottoms and of tops (None: any number).
    bottom_range: ClassVar[tuple[int, int | None]] = (1, 1)
    top_range: ClassVar[tuple[int, int | None]] = (1, 1)
    # False for types that have no backward (Accuracy, ArgMax); data layers have no bottoms and so need none.
    differentiable = True
    # True for types whose bottoms are read by whoever runs the net, after every forward.
    is_sink: ClassVar[bool] = False
    # Tensors made by lower() that keep their values from pass to pass, until the layer writes others.
    persistent: Sequence[Tensor] = ()
    # Whether the layer's ops can take bf16 bottoms and give bf16 tops; others run in float32 in any net.
    bf16 = False
    # In a layer that runs in bf16: the bottoms that stay float32 all the same, and whether all tops do.
    wide_bottoms: ClassVar[frozenset[int]] = frozenset()
    wide_tops: ClassVar[bool] = False
    widens = False  # whether its tops are float32 in this net, because their readers take nothing else: see can_widen
    # Bottoms of which only the shape is read.
    shape_bottoms: ClassVar[frozenset[int]] = frozenset()
    # The fields of FIELDS_OF_FEW that the type reads.
    own_fields: ClassVar[frozenset[str]] = frozenset()
    # Whether the type reads NaN in a bottom as a value that is not known.
    takes_nan: ClassVar[bool] = False
    # Whether top i depends on bottom i alone.
    in_pairs: ClassVar[bool] = False
    # Whether the first top alone has a gradient, as in losses; the others only tell something.
    first_top_learns: ClassVar[bool] = False
    # For types that compare scores, their first bottom, with labels, the second: the type of the layer that makes
    # probabilities of the scores. "Softmax" if one class is right, "Sigmoid" if each label is there or not.
    probabilities: ClassVar[str] = ""
    # With "Sigmoid": whether a label is above 0 if it is there, below 0 if it is not, and 0 if it does not count; else
    # a label is 1 or 0.
    signed_labels: ClassVar[bool] = False
    # Whether the type only measures how good others are, or says what to learn: of no use without labels.
    is_measure: ClassVar[bool] = False
    # Whether a loss's gradient is the sum over a batch, not the mean.
    sums_batch: ClassVar[bool] = False
    # Whether the rows of a layer without bottoms are steps of time, not samples.
    rows_are_steps: ClassVar[bool] = False
    # Bottoms into which no gradient flows (labels).
    constant_bottoms: ClassVar[frozenset[int]] = frozenset()

    part: Part | None = field(default=None, init=False)  # this rank's part, if several ranks hold the layer together
    misfit: Misfit | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        return self.message.name

    @property
    def type(self) -> str:
        return self.message.type

    @property
    def is_loss(self) -> bool:
        """Whether the type is a loss: its op reads loss_weight by itself, 1 if the text gives none."""
        return self.type.endswith("Loss")

    @property
    def asked_axis(self) -> int:
        """The axis of the classes, as the text gives it, for Softmax and for types whose `probabilities` is
        "Softmax"."""
        return 1

    @property
    def smallest_is_best(self) -> bool:
        """Whether the smallest score is the best, for types that compare scores with labels."""
        return False

    @property
    def ignored_label(self) -> int | None:
        """The label that does not count, for types that compare scores with labels; None: all count."""
        return None

    @property
    def named_tops(self) -> list[Blob]:
        """The tops that the text names. A loss has a top also if the text names none."""
        return self.tops[: len(self.message.top)]

    @property
    def remembers(self) -> bool:
        """Whether a forward changes more than its tops, so that a second one would not do the same."""
        return self.is_sink or self.goes_on

    @property
    def goes_on(self) -> bool:
        """Whether the tops of a batch depend on the batches before it."""
        return False

    @property
    def rescales_weights(self) -> bool:
        """Whether a forward scales rows of the weights to length 1, in place."""
        return False

    @property
    def learns(self) -> bool:
        """Whether updates change one of its parameters."""
        return any((parameter.owner or parameter).learnable for parameter in self.params)

    @property
    def training(self) -> bool:
        """Whether the layer's phase is TRAIN."""
        return self.phase == 0

    @property
    def shapes(self) -> list[Shape]:
        """Shapes of the bottoms."""
        return [blob.shape for blob in self.bottoms]

    @property
    def keeps_kernels(self) -> bool:
        """Whether it must have the kernels of the rules of thumb, and none chosen by measurement."""
        return False

    @property
    def can_widen(self) -> bool:
        """Whether its ops can give float32 tops of bf16 bottoms."""
        return False

    @property
    def takes_rows(self) -> bool:
        """Whether its ops read bottoms row by row, in row-major order. Other ops may want images with channels last, or
        in the layout that they have."""
        return False

    def infer(self) -> list[Shape]:
        """Returns the shapes of the tops, by `self.shapes`. Raises ConfigError (see `self.error`) if these do not
        fit."""
        raise NotImplementedError

    def make_params(self) -> list[Parameter]:
        """Returns the parameters, after shapes are known. The graph fills in what `param {}` says."""
        return []

    def attributes(self) -> Attributes:
        """Returns what the op of this type needs to know: ints, floats, strings, lists of ints or floats."""
        return {}

    def lower(self, builder: Builder) -> None:
        """Adds the layer's ops to a program. By default one op of the type's name, from bottoms to tops."""
        inputs = [builder.tensor(blob) for blob in self.bottoms]
        builder.op(self.type, self, inputs, self.attributes())

    def lower_misfit(self, builder: Builder) -> None:
        """Adds the op of a misfit, which raises its error."""
        error = cast(Misfit, self.misfit).error

        def run(backward: bool) -> None:
            raise error.with_traceback(None)

        inputs = [builder.tensor(blob) for blob in self.bottoms]
        builder.op("Python", self, inputs, {"run": run, "loss_weight": float(any(self.loss_weights))}, params=[])
        builder.hold(self.params)

    def reached_from(self, top: int) -> Collection[int]:
        """Returns the bottoms into which the gradient of a top flows."""
        if self.in_pairs:
            return (top,)
        return () if top > 0 and (self.is_loss or self.first_top_learns) else range(len(self.bottoms))

    def propagates(self, i: int) -> bool:
        """Tells whether a gradient may flow into a bottom: it is no label, and propagate_down does not forbid it."""
        flags = self.message.propagate_down
        return i not in self.constant_bottoms and (flags[i] if flags else True)

    def summed_params(self) -> list[Parameter]:
        """Returns the parameters whose gradients are sums over several ops of this layer."""
        return []

    def feed(self, step: int, seed: int, first_sample: int | None = None) -> dict[Blob, np.ndarray]:
        """Returns the values of the tops for this step, for layers that make up their own (DummyData); {} keeps the
        previous ones.

        step: the number of the pass. first_sample: the number of the batch's first sample in the whole training; None
        if it is not known."""
        return {}

    def succeed(self, before: Layer) -> None:
        """Takes over what `before`, this layer of the old net, remembers. Called before infer() when a net is built
        again in other shapes."""

    def absorb(self, following: Layer) -> bool:
        """Takes over the work of the only reader of this layer's top, if it can, and returns whether it has. Called
        when layers are fused."""
        return False

    def flops(self) -> int:
        """Returns the floating-point operations of one forward pass (a multiply-add counts two)."""
        return sum(math.prod(top.shape) for top in self.tops)

    def error(self, message: str, details: str = "", kind: type[ConfigError] = ConfigError) -> ConfigError:
        """Returns the exception to raise, of that `kind`. details: further lines."""
        return kind(f"layer '{self.name}' ({self.type}): {message}", self.where, details)

    def check_above_zero(self, param: SizedParam, *fields: str) -> None:
        """Raises ConfigError for a field of `param` that is 0, or not given."""
        for name in fields:
            if getattr(param, name) == 0:
                missing = f"{name} is missing; give it, a number above 0"
                raise self.error(f"expected {name} above 0, got 0" if param.HasField(name) else missing)

    def check_blob(self, what: str, shape: Shape) -> None:
        """Raises ConfigError unless a blob can have this shape. what: what the message calls the blob."""
        count = math.prod(shape, start=1.0)  # a float does not overflow, as NumPy's integers do
        if count <= MOST_VALUES and len(shape) <= MOST_AXES and (not shape or min(shape) > 0):
            return
        raise self.error(
            f"{what} would be {shape_text(shape)}; expected {MOST_AXES} axes at most, none of them empty, "
            f"and {MOST_VALUES} values at most"
        )

    def check_window(self, name: str, sizes: Sequence[int]) -> None:
        """Raises ConfigError if a size of a window is too large for the ops: fields hold unsigned numbers. name: what
        the message calls the sizes."""
        if max(sizes) > MOST_PIXELS:
            raise self.error(f"expected {name} of at most {MOST_PIXELS}, got {max(sizes)}")

    @contextlib.contextmanager
    def arithmetic(self) -> Iterator[None]:
        """A context that turns errors of arithmetic into ConfigError: a value of the layer's parameters may be too
        large for a float or a field, or have no logarithm."""
        try:
            yield
        except (ArithmeticError, ValueError) as error:
            raise self.error(f"its parameters cannot be computed with: {error}") from error

    def canonical_axis(self, axis: int, rank: int) -> int:
        """Returns an axis of a blob of `rank` axes, from 0; negative ones count from the end, as in Python. Raises
        ConfigError if it is out of range."""
        if not -rank <= axis < rank:
            raise self.error(f"axis {axis} is out of range for a blob of {rank} axes")
        return axis % rank
