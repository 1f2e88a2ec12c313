"""Runs the user's Python code as its forward and backward."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np

from engine.config.stand_ins import is_module_there
from engine.config.suggestions import suggestion
from engine.errors import CODE, ConfigError, EngineError, shape_text
from engine.host.startup import collect_as_ever
from engine.layers.base import Layer, Parameter, Shape
from engine.layers.python_layer import Blobs, LayerBlob, PythonLayer, users_traceback
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.host._core import Tensor
    from engine.layers.builder import Builder


T = TypeVar("T")
_before_import: list[Callable[[], None]] = []
_consent: list[bool] = []


def allow_modules() -> None:
    """Lets the nets of this process import and run the modules that their Python layers name. It is for those who trust
    the authors of these nets: the command line calls it for --python_layers, and caffe.Net for a program that makes
    one."""
    _consent[:] = [True]


def before_import(prepare: Callable[[], None]) -> None:
    """Makes `prepare` be called before the module of a user's layer is imported: such modules `import caffe`, which
    this package does not know."""
    if prepare not in _before_import:
        _before_import.append(prepare)


class ModuleRefused(ConfigError):
    """The error for a layer whose code nobody has allowed to run, and whose shapes only that code knows."""


class UserError(ConfigError):
    """The error for a user's code that has raised `raised`. A program that has called the net gets that instead."""

    raised: Exception


class ShapesChanged(EngineError):
    """The error for a layer that has given its tops other shapes than those for which the net was built. caffe.Net then
    builds itself again."""

    def __init__(self, layer: Python, shapes: list[Shape]):
        planned = [blob.shape for blob in layer.tops]
        error = layer.error(
            f"has given its tops the shapes {shapes}, but the net was built for {planned}; only nets of scripts "
            "(caffe.Net, caffe.SGDSolver) can change from batch to batch"
        )
        super().__init__(str(error))
        self.layer = layer


@register("Python")
class Python(Layer):
    """Bottoms, tops: any. python_param names a module, which is in Python's path or beside the prototxt, and a class of
    it that derives from caffe.Layer (engine.layers.python_layer.PythonLayer). It is imported only after a call of
    allow_modules(): opening a net runs nobody's code.

    For the user's code, a top that has a bottom's name is one blob with the bottom, as in Caffe. But other layers may
    read either: values are copied from the bottom before a forward, and the gradient to the bottom after a backward."""

    bottom_range = (0, None)
    top_range = (0, None)
    _is_set_up = False
    # From before the net was built again: the shapes of the tops; the values of the tops, which the next forward takes
    # instead of the user's code; the bottoms and tops.
    _known: list[Shape] | None = None
    _computed: list[np.ndarray] | None = None
    _before: tuple[list[LayerBlob], list[LayerBlob]] | None = None

    @property
    def remembers(self) -> bool:
        """Whether a forward changes more than its tops: the user's code may do so."""
        return True

    @cached_property
    def user(self) -> PythonLayer:
        """The user's object."""
        param = self.message.python_param
        user = self._guard("__init__", self._user_class(), self.message)
        user.param_str = user.param_str_ = param.param_str
        user.phase, user.name, user.type, user.blobs = self.phase, self.name, self.type, Blobs()
        return user

    def succeed(self, before: Layer) -> None:
        """Takes over the user's object, with its blobs and whatever it remembers, and the tops that it has computed for
        the next run."""
        before = cast(Python, before)
        self.user = before.user
        self._is_set_up = True
        self._known = before._known or [blob.shape for blob in before._top]
        self._computed = before._computed
        self._before = before._bottom, before._top

    def repeat(self) -> None:
        """Makes the next forward take the tops as they are now, without running the user's code."""
        self._computed = [np.array(blob.data) for blob in self._top]
        self._known = [values.shape for values in self._computed]

    def _user_class(self) -> type[PythonLayer]:
        param = self.message.python_param
        if not (param.module and param.layer):
            raise self.error("expected python_param { module: ... layer: ... }: the module and the class in it")
        if not _consent:
            if not is_module_there(param.module, self._folder):
                raise self._absent()
            raise self.error(
                f"its shapes are known to its author's code only, module '{param.module}', which is not imported "
                "unasked; where the net runs, --python_layers or ENGINE_PYTHON_LAYERS=1 allow it, if you trust it",
                kind=ModuleRefused,
            )
        collect_as_ever()
        for prepare in _before_import:
            prepare()
        if self._folder not in sys.path:
            sys.path.append(self._folder)
        try:
            module = importlib.import_module(param.module)
        except ModuleNotFoundError as error:
            if error.name != param.module.split(".")[0]:
                raise self.error(f"module '{param.module}' needs '{error.name}', which is not there") from error
            raise self._absent() from None
        except (Exception, SystemExit) as error:
            raise self._failure("import", error) from error
        if not hasattr(module, param.layer):
            classes = [name for name, value in vars(module).items() if isinstance(value, type)]
            raise self.error(
                f"module '{param.module}' has no class '{param.layer}'{suggestion(param.layer, classes)} "
                f"({module.__file__})"
            )
        found = getattr(module, param.layer)
        if not (isinstance(found, type) and issubclass(found, PythonLayer)):
            raise self.error(f"'{param.layer}' is not a class that derives from caffe.Layer ({module.__file__})")
        return found

    @property
    def _folder(self) -> str:
        """The folder of the prototxt."""
        return os.path.dirname(os.path.abspath(self.where.rsplit(":", 2)[0]))

    def _absent(self) -> ConfigError:
        module = self.message.python_param.module
        path = module.replace(".", "/")
        return ConfigError(
            f"layer '{self.name}' (Python): module '{module}' is neither in PYTHONPATH nor beside the prototxt; put "
            f"{path}.py into {self._folder}, or its folder into PYTHONPATH",
            self.where,
            absent=CODE,
        )

    def infer(self) -> list[Shape]:
        weights = [*self.message.loss_weight, *[0.0] * len(self.message.top)]
        self._bottom = [LayerBlob(shape) for shape in self.shapes]
        shapes = self._known or [()] * len(self.message.top)
        self._top = [LayerBlob(shape, weight) for shape, weight in zip(shapes, weights)]
        for top, bottom in self._in_place:
            self._top[top] = self._bottom[bottom]
        if not self._is_set_up:
            self._guard("setup", self.user.setup, self._bottom, self._top)
        if self._computed is None:
            self._guard("reshape", self.user.reshape, self._bottom, self._top)
        self._check_tops()
        return [blob.shape for blob in self._top]

    @property
    def _in_place(self) -> list[tuple[int, int]]:
        """The tops that have a bottom's name: (number of the top, number of the bottom)."""
        bottoms = list(self.message.bottom)
        return [(top, bottoms.index(name)) for top, name in enumerate(self.message.top) if name in bottoms]

    def _check_tops(self) -> None:
        """Raises ConfigError for tops that a net cannot have, before it is built again for them: it would be built
        again and again."""
        for name, blob in zip(self.message.top, self._top):
            if 0 in blob.shape:
                raise self.error(
                    f"top '{name}' would be {shape_text(blob.shape)}, but a blob is never empty here, as it may be in "
                    "Caffe: where there is nothing, give one dummy row, such as of zeros"
                )
            self.check_blob(f"top '{name}'", blob.shape)
        for top, bottom in self._in_place:
            if self._top[top].shape != self.shapes[bottom]:
                raise self.error(
                    f"works in place on '{self.message.top[top]}' {self.shapes[bottom]}, and cannot give it the shape "
                    f"{self._top[top].shape}; give the top another name"
                )

    def make_params(self) -> list[Parameter]:
        return [Parameter(blob.shape, values=blob.data) for blob in self.user.blobs]

    def summed_params(self) -> list[Parameter]:
        """Returns all parameters: the user's code may add to gradients or set them, so they must begin at 0."""
        return self.params

    def lower(self, builder: Builder) -> None:
        sources = [builder.tensor(blob) for blob in self.bottoms]
        inputs = [builder.plain(self, tensor) for tensor in sources]
        outputs = builder.op("Python", self, inputs, {"run": self._run})
        params = [builder.parameter(parameter) for parameter in self.params]
        self._copied: list[tuple[LayerBlob, Tensor]] = []
        if self._before:
            self._bottom, self._top = self._before
        for top, bottom in self._in_place:
            self._copied.append((self._top[top], inputs[bottom]))
        # The user's code finds its arrays as it has left them, as in Caffe. So its gradients are copies: those of
        # tensors share memory with other blobs in forward, and with other terms of a sum. The tops keep their memory
        # (persistent).
        self._given = list(zip(self._top, self.loss_weights, [tensor.diff for tensor in outputs], strict=True))
        self._wanted = [(b, t.diff) for b, t in zip(self._bottom, inputs, strict=True) if t.diff is not None]
        self._carried = [(blob, blob.data) for blob in self._top]  # copied into the tensors in the first forward
        tops = [tensor.without_diff() for tensor in outputs]
        # Of bottoms that are not row-major, the user's code has copies; what it writes there is copied to the blobs.
        reordered = [pair for pair in zip(inputs, sources, strict=True) if pair[0] is not pair[1]]
        self._reordered = [(copy, source, np.empty(copy.shape, np.float32)) for copy, source in reordered]
        self.persistent = tops + [source.without_diff() for _, source in reordered]
        placed = (
            (self._bottom, [tensor.without_diff() for tensor in inputs], self.shapes),
            (self._top, tops, [blob.shape for blob in self.tops]),
            (self.user.blobs, params, [each.shape for each in self.params]),
        )
        for blobs, tensors, shapes in placed:
            for blob, tensor, shape in zip(blobs, tensors, shapes, strict=True):
                blob.place(tensor, shape)
        self._propagate_down = [tensor.diff is not None for tensor in inputs]

    def _run(self, backward: bool) -> None:
        """Runs the user's forward or backward. The executor calls it."""
        if backward:
            for blob, weight, diff in self._given:
                blob.diff[...] = weight if diff is None else _values(diff, blob)
            self._guard("backward", self.user.backward, self._top, self._propagate_down, self._bottom)
            for blob, diff in self._wanted:
                _values(diff, blob)[...] = blob.diff
            return
        while self._carried:
            blob, values = self._carried.pop()
            if values.shape == blob.shape:
                blob.data[...] = values
        if self._computed is not None:
            for blob, values in zip(self._top, self._computed):
                blob.data[...] = values
            self._known = self._computed = None
        else:
            for blob in self._bottom:
                blob.return_to_plan()
            for blob, bottom in self._copied:
                blob.data[...] = _values(bottom, blob)
            with self._written_back():
                self._guard("reshape", self.user.reshape, self._bottom, self._top)
                self._guard("forward", self.user.forward, self._bottom, self._top)
            self._check_tops()
            settled = [blob.settle() for blob in self._top]
            if not all(settled):
                raise ShapesChanged(self, [blob.shape for blob in self._top])

    @contextmanager
    def _written_back(self) -> Iterator[None]:
        """A context at whose end the blobs get what the user's code has written into copies of bottoms, so that their
        other readers see it, as in Caffe."""
        for copy, _, before in self._reordered:
            before[...] = _array(copy)
        yield
        for copy, source, before in self._reordered:
            if not np.array_equal(_array(copy).view(np.int32), before.view(np.int32)):  # NaN may stay, too
                source.set(_array(copy))

    def _guard(self, what: str, function: Callable[..., T], *arguments: object) -> T:
        try:
            return function(*arguments)
        except (Exception, SystemExit) as error:
            raise self._failure(what, error) from error

    def _failure(self, what: str, error: BaseException) -> EngineError:
        param = self.message.python_param
        said = f"{what} of {param.module}.{param.layer} failed", users_traceback(error, __file__)
        if not isinstance(error, Exception):  # a SystemExit, which would end this rank alone
            return self.error(*said)
        failure = cast(UserError, self.error(*said, kind=UserError))
        failure.raised = error
        return failure


def _array(tensor: Tensor) -> np.ndarray:
    """Returns a view of a row-major tensor's values."""
    return cast(np.ndarray, tensor.view())


def _values(tensor: Tensor, blob: LayerBlob) -> np.ndarray:
    """Returns a view of a row-major tensor's values in the shape of a blob."""
    return _array(tensor).reshape(blob.shape)
