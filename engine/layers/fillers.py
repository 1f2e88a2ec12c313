"""Initial values of parameters: a registry of fillers by Caffe's names.

Random numbers come from a generator keyed by (seed, layer, index). So a parameter's values depend on nothing else in
the net, nor on ranks or threads.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from engine.config.numbers import number
from engine.config.suggestions import suggestion
from engine.errors import ConfigError, shape_text
from engine.files import read_text

if TYPE_CHECKING:
    from engine import proto
    from engine.layers.base import Parameter

Shape = tuple[int, ...]
Filler: TypeAlias = "Callable[[Shape, proto.FillerParameter, np.random.Generator], np.ndarray]"

Fits: TypeAlias = "Callable[[Shape, proto.FillerParameter], bool]"

_fillers: dict[str, Filler] = {}
_fits: dict[str, tuple[str, Fits]] = {}  # name -> (what the filler needs, in words; whether shape and message have it)


def filler(name: str, needs: str = "", fits: Fits | None = None) -> Callable[[Filler], Filler]:
    """Returns a decorator that registers a function fill(shape, message, generator) -> float32 array for `type:
    "<name>"`.

    needs, fits: what a shape and a message must have for it, in words and as fits(shape, message).
    """

    def register(function: Filler) -> Filler:
        _fillers[name] = function
        if fits is not None:
            _fits[name] = needs, fits
        return function

    return register


def complaint(shape: Shape, message: proto.FillerParameter) -> str:
    """Returns what is wrong with a FillerParameter for a blob of this shape, "" if it can be filled."""
    if message.type not in _fillers:
        return f"unknown filler '{message.type}'{suggestion(message.type, _fillers)}"
    needs, fits = _fits.get(message.type, ("", None))
    if fits is None or fits(shape, message):
        return ""
    got = f"{message.min:g} to {message.max:g}" if message.type == "uniform" else shape_text(shape)
    return f"filler '{message.type}': expected {needs}; got {got}"


def fill(
    shape: Shape, message: proto.FillerParameter, generator: np.random.Generator, where: str | None = None
) -> np.ndarray:
    """Returns a float32 array of `shape`, filled by a FillerParameter. Raises ConfigError for an unknown type, for a
    shape that does not fit, and for a file that has not the right numbers."""
    if wrong := complaint(shape, message):
        raise ConfigError(wrong, where)
    try:
        with np.errstate(over="raise", divide="raise", invalid="raise"):
            values = _fillers[message.type](shape, message, generator)
            return values if message.scale == 1 else values * np.float32(message.scale)
    except (ArithmeticError, ValueError) as error:
        raise ConfigError(f"filler '{message.type}': {error}", where) from None
    except ConfigError as error:  # the file's error: see file()
        raise ConfigError(f"filler '{message.type}': {error}", where, absent=error.absent) from None


def fill_parameter(parameter: Parameter, seed: int) -> np.ndarray:
    """Returns the initial values of a parameter, float32, in Caffe's shape; zeros if it has no filler. Raises
    ConfigError as fill() does."""
    if parameter.values is not None:
        return parameter.values
    if parameter.filler is None:
        return np.zeros(parameter.shape, np.float32)
    generator = keyed_generator(seed, parameter.layer, parameter.index)
    place = f"{parameter.where}: " if parameter.where else ""
    where = f"{place}layer '{parameter.layer}', parameter {parameter.index}"
    return parameter.part_of(fill(parameter.whole_shape, parameter.filler, generator, where))


def keyed_generator(seed: int, name: str, *numbers: int) -> np.random.Generator:
    """Returns a generator whose numbers depend on the arguments alone."""
    key = hashlib.sha256("\0".join([str(seed), name, *map(str, numbers)]).encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "little")))


def _uniform(shape: Shape, low: float, high: float, generator: np.random.Generator) -> np.ndarray:
    return _scaled(generator.random(shape, dtype=np.float32), low, high - low)


def _gaussian(shape: Shape, mean: float, std: float, generator: np.random.Generator) -> np.ndarray:
    return _scaled(generator.standard_normal(shape, dtype=np.float32), mean, std)


def _scaled(values: np.ndarray, offset: float, factor: float) -> np.ndarray:
    """Returns the values times `factor` plus `offset`. It works in place, as a net's memory is at its peak while its
    largest parameter is filled."""
    values *= np.float32(factor)
    values += np.float32(offset)
    return values


def _outputs(shape: Shape) -> int:
    """Returns the number of outputs, the first axis. A single value is one output, as in Caffe."""
    return shape[0] if shape else 1


def _fan(shape: Shape, message: proto.FillerParameter) -> float:
    """Returns, by variance_norm, how many inputs an output has, how many outputs an input has, or their average."""
    count = math.prod(shape)
    fan_in = count / _outputs(shape)
    fan_out = count / shape[1] if len(shape) > 1 else count
    fans = {message.FAN_IN: fan_in, message.FAN_OUT: fan_out, message.AVERAGE: (fan_in + fan_out) / 2}
    return fans[message.variance_norm]


@filler("constant")
def constant(shape: Shape, message: proto.FillerParameter, generator: np.random.Generator) -> np.ndarray:
    return np.full(shape, message.value, np.float32)


def _holds_diagonal(shape: Shape, message: proto.FillerParameter) -> bool:
    return len(shape) >= 2 and len(message.diag_val) <= min(shape[:2])


@filler("diagonal", "at least 2 axes, the first two no shorter than diag_val", _holds_diagonal)
def diagonal(shape: Shape, message: proto.FillerParameter, generator: np.random.Generator) -> np.ndarray:
    """Sets the matrix of outputs, shape[0], by inputs, shape[1], to a diagonal one at every place of a kernel, as
    FlowNet 2 does. Value i of the diagonal is diag_val[i], or the last that there is; 1 without diag_val."""
    values, given = np.zeros(shape, np.float32), list(message.diag_val) or [1.0]
    for i in range(min(shape[:2])):
        values[i, i] = given[min(i, len(given) - 1)]
    return values


@filler("file")
def file(shape: Shape, message: proto.FillerParameter, generator: np.random.Generator) -> np.ndarray:
    """Reads the numbers of a text, as the Spatial Transformer's fork does: its nets begin with a map that copies."""
    if not message.file:
        raise ValueError("expected the name of a text of numbers in 'file'")
    words, count = read_text(message.file, ConfigError, expected="numbers").split(), math.prod(shape)
    if len(words) != count:
        raise ConfigError(f"has {len(words)} numbers, the blob {count}", message.file)
    values, most = [number(word) for word in words], float(np.finfo(np.float32).max)
    for word, value in zip(words, values, strict=True):
        if value is None or abs(value) > most:
            raise ConfigError(f"expected numbers, got '{word}'", message.file)
    return np.array(values, np.float32).reshape(shape)


@filler("uniform", "min up to max", lambda shape, message: message.min <= message.max)
def uniform(shape: Shape, message: proto.FillerParameter, generator: np.random.Generator) -> np.ndarray:
    return _uniform(shape, message.min, message.max, generator)


@filler("gaussian")
def gaussian(shape: Shape, message: proto.FillerParameter, generator: np.random.Generator) -> np.ndarray:
    """With `sparse` k, about k of the inputs of every output, shape[0], are not zero."""
    values = _gaussian(shape, message.mean, message.std, generator)
    if message.sparse >= 0:
        values *= generator.random(shape, dtype=np.float32) < message.sparse / _outputs(shape)
    return values


@filler("xavier")
def xavier(shape: Shape, message: proto.FillerParameter, generator: np.random.Generator) -> np.ndarray:
    bound = math.sqrt(3 / _fan(shape, message))
    return _uniform(shape, -bound, bound, generator)


@filler("msra")
def msra(shape: Shape, message: proto.FillerParameter, generator: np.random.Generator) -> np.ndarray:
    """happynear's `alpha` is the slope of the activation behind it where that is negative (He et al. 2015)."""
    return _gaussian(shape, 0, math.sqrt(2 / (1 + message.alpha**2) / _fan(shape, message)), generator)


@filler("positive_unitball")
def positive_unitball(shape: Shape, message: proto.FillerParameter, generator: np.random.Generator) -> np.ndarray:
    """Positive values whose sum over every output, shape[0], is 1."""
    values = generator.random(shape, dtype=np.float32)
    return values / values.sum(axis=tuple(range(1, len(shape))), keepdims=True)


@filler("gaussian_unitball")
def gaussian_unitball(shape: Shape, message: proto.FillerParameter, generator: np.random.Generator) -> np.ndarray:
    """happynear's: Gaussian values, of which those of every output, shape[0], have the L2 norm 1."""
    values = _gaussian(shape, 0, 1, generator)
    return values / np.sqrt((values * values).sum(axis=tuple(range(1, len(shape))), keepdims=True))


@filler("bilinear", "4 axes with a square kernel", lambda shape, _: len(shape) == 4 and shape[2] == shape[3])
def bilinear(shape: Shape, message: proto.FillerParameter, generator: np.random.Generator) -> np.ndarray:
    """The kernel of bilinear interpolation, for a deconvolution that enlarges."""
    size = shape[3]
    factor = math.ceil(size / 2)
    center = (size - 1) / (2 * factor)
    line = 1 - np.abs(np.arange(size) / factor - center)
    return np.broadcast_to(np.outer(line, line).astype(np.float32), shape).copy()


@filler("gabor", "4 axes with a kernel of 3 x 3 at least", lambda shape, _: len(shape) == 4 and min(shape[2:]) >= 3)
def gabor(shape: Shape, message: proto.FillerParameter, generator: np.random.Generator) -> np.ndarray:
    """Gratings under a Gaussian window, for the first convolution: each output with a random orientation, wavelength (4
    pixels up to the kernel's size) and phase, the same in all input channels, of mean 0 and standard deviation `std`.
    """
    angle, phase = 2 * math.pi * generator.random((2, shape[0], 1, 1))
    size = max(shape[2:])
    wavelength = min(4, size) + (size - min(4, size)) * generator.random((shape[0], 1, 1))
    y, x = np.mgrid[: shape[2], : shape[3]] - (np.array(shape[2:]).reshape(2, 1, 1) - 1) / 2
    wave = np.cos(2 * math.pi * (x * np.cos(angle) + y * np.sin(angle)) / wavelength + phase)
    values = wave * np.exp(-(x**2 + y**2) / (2 * (size / 4) ** 2))
    values -= values.mean(axis=(1, 2), keepdims=True)
    values *= message.std / values.std(axis=(1, 2), keepdims=True)
    return np.repeat(values[:, None], shape[1], axis=1).astype(np.float32)
