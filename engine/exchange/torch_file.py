"""Reads and writes state dictionaries of PyTorch, without PyTorch and without running code that a file names.

A .pth holds a pickle of the dictionary, and the values of the tensors beside it: since PyTorch 1.6 as members of a zip
file, before that one after the other. The unpickler here knows the few names that a dictionary of tensors needs and
refuses all others, as torch.load does with weights_only. A .safetensors holds a header in JSON, then the values.
"""

from __future__ import annotations

import io
import json
import math
import os
import pickle
import pickletools
import struct
import zipfile
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from engine.errors import WeightsError
from engine.files import atomic_write, check_members, opened, reason
from engine.weights.shapes import checked_shape

BF16 = "bf16"  # stands for a dtype that NumPy does not have
# NumPy's dtypes for the names of a .pth and of a .safetensors.
_STORAGES = {
    "FloatStorage": "<f4",
    "DoubleStorage": "<f8",
    "HalfStorage": "<f2",
    "BFloat16Storage": BF16,
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "?",
}
_SAFE = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": BF16,
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "?",
}
_MAGIC = 0x1950A86A20F9469CFC6C  # the first object of files before PyTorch 1.6
ZIP = b"PK\x03\x04"  # the first bytes of a zip file
PICKLE = b"\x80"  # the first byte of a pickle: the opcode before its version
_MODELS = ("state_dict", "model", "model_state_dict")  # keys of the state dictionary in what training scripts save
_DEEPEST = 100  # tuples within tuples; PyTorch's go 3 deep. At a million, Python's hash() ends the process
_MOST_OBJECTS = 100_000  # in a tuple and the tuples in it

# Tensors may share values, as tied weights do, and so be larger than the file: it may give so many bytes for each of
# its own, and so many more.
_BYTES_FOR_EACH = 16
_BYTES_MORE = 64 << 20


class _Storage(NamedTuple):
    """A run of numbers of one dtype, in which the values of tensors lie."""

    dtype: str
    key: str
    count: int


class _Lazy(NamedTuple):
    """A tensor whose values are not read yet. Offset and strides count values of its storage."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class _Refused(Exception):
    """Raised for a pickle that has something that a dictionary of tensors does not need."""


def read_state(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Returns the tensors of a state dictionary by name, as float32. If all names begin with "module.", it is removed.

    The first bytes of the file tell its format; only where they do not does its name matter.

    Raises WeightsError for a file that is missing, damaged, something else, or would run code.
    """
    with opened(path, WeightsError) as file:
        begin = file.read(len(ZIP))
        safe = is_safetensors(file)
        file.seek(0)
        try:
            if begin == ZIP:
                found = _read_zip(file)
            elif safe or (str(path).endswith(".safetensors") and begin[:1] != PICKLE):
                found = _read_safetensors(file)
            else:
                found = _read_old(file)
        except _Refused as error:
            raise WeightsError(f"would run code, and is not read: {error}; save the model's state_dict()",
                               str(path)) from None  # fmt: skip
        except WeightsError:
            raise
        except Exception as error:  # a damaged pickle raises whatever its opcodes lead to
            raise WeightsError(f"truncated or no state dictionary ({reason(error)})", str(path)) from None
    if not found:
        raise WeightsError("has no tensors", str(path))
    if all(name.startswith("module.") for name in found):
        found = {name.removeprefix("module."): values for name, values in found.items()}
    return found


# .pth: its pickle makes tensors by calls of PyTorch's functions, in whose place the next two are called.


def _rebuild_tensor(
    storage: _Storage, offset: int, size: tuple, stride: tuple, requires_grad: bool = False, hooks: Any = None,
    metadata: Any = None,
) -> _Lazy:  # fmt: skip
    if not isinstance(storage, _Storage):
        raise _Refused("a tensor of no storage")
    if len(stride) != len(size):
        raise ValueError(f"a tensor of {len(size)} axes with {len(stride)} strides")
    return _Lazy(storage, int(offset), checked_shape(size), tuple(int(step) for step in stride))


def _rebuild_parameter(data: _Lazy, requires_grad: bool = False, hooks: Any = None) -> _Lazy:
    if not isinstance(data, _Lazy):
        raise _Refused("a parameter that is no tensor")
    return data


class _Dictionary(OrderedDict):
    """An OrderedDict that ignores the attributes in a pickle: PyTorch keeps the versions of modules as one."""

    def __setstate__(self, state: Any) -> None:
        pass


class _Unpickler(pickle.Unpickler):
    """Makes dictionaries and tensors, nothing else.

    Args:
        room: how many items dictionaries may get from lists, in all.
    """

    def __init__(self, file: BinaryIO, room: int, **options: Any):
        super().__init__(file, **options)
        self._room = room
        self.dtypes: dict[str, str] = {}  # of the storages that were met, by key

    def _dictionary(self, items: Iterable = ()) -> _Dictionary:
        """Makes a dictionary of a list of pairs, which is how Python 2 wrote it.

        Raises ValueError for too many items: a short pickle can make dictionaries of one list again and again.
        """
        result = _Dictionary(items)
        self._room -= len(result)
        if self._room < 0:
            raise ValueError("dictionaries of more items than it has bytes")
        return result

    def find_class(self, module: str, name: str) -> Any:
        """Returns what stands for a class or function that the pickle names. Raises _Refused for unknown ones."""
        known: dict[tuple[str, str], Any] = {
            ("collections", "OrderedDict"): self._dictionary,
            ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
            ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
            ("torch", "Size"): checked_shape,
        }
        if (module, name) in known:
            return known[module, name]
        if module in ("torch", "torch.storage") and name in _STORAGES:
            return _STORAGES[name]
        raise _Refused(f"it names {module}.{name}")

    def persistent_load(self, pid: Any) -> _Storage:
        """Returns the storage that a pickle refers to by ("storage", dtype, key, device, count). Raises _Refused if it
        refers to something else."""
        if not isinstance(pid, tuple) or len(pid) < 5 or pid[0] != "storage" or pid[1] not in _STORAGES.values():
            raise _Refused("it refers to something that is no storage")
        if not isinstance(pid[2], str | int):  # str() of another object may be of any length
            raise _Refused("it refers to a storage by something that is no name")
        if len(pid) > 5 and pid[5] is not None:
            raise _Refused("it has views of storages, which only files of PyTorch 0.1 have")
        storage = _Storage(pid[1], str(pid[2]), int(pid[4]))
        self.dtypes[storage.key] = storage.dtype
        return storage


def _unpickler(file: BinaryIO, **options: Any) -> _Unpickler:
    """Returns an unpickler for the next object of a file, after a look at its opcodes. Raises ValueError if these are
    dangerous."""
    begin = file.tell()
    _check_opcodes(file)
    room = file.tell() - begin
    file.seek(begin)
    return _Unpickler(file, room, **options)


def _unpickled(file: BinaryIO, **options: Any) -> Any:
    """Reads the next object of a file."""
    return _unpickler(file, **options).load()


def _check_opcodes(file: BinaryIO) -> None:
    """Raises ValueError for opcodes that would exhaust memory or time.

    - BYTEARRAY8 and LONG_BINPUT allocate as much as their argument says, before they read on. The argument that a
      pickler writes for LONG_BINPUT, an index of the memo, is never larger than the opcode's place in the file.
    - Python's hash() goes through tuples in tuples again for each time that they are named.

    This follows the unpickler's stack and memo, in which (depth, objects) stands for an object: how deep tuples in it
    go, and how many objects it has, each counted as often as it is named.
    """
    stack: list[tuple[int, int]] = []
    marks: list[int] = []  # lengths of the stack at its marks
    memo: dict[Any, tuple[int, int]] = {}
    for opcode, argument, place in pickletools.genops(file):
        name, before = opcode.name, opcode.stack_before
        if name == "BYTEARRAY8" or (name == "LONG_BINPUT" and (argument or 0) > (place or 0)):
            raise ValueError(f"the opcode {name} at byte {place}")
        if name == "MARK":
            marks.append(len(stack))
        elif name == "POP" and marks and marks[-1] == len(stack):
            marks.pop()
        elif name.endswith("GET"):
            stack.append(memo[argument])
        elif name == "DUP":
            stack.append(stack[-1])
        elif name.endswith("PUT"):
            memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        else:
            marked = pickletools.markobject in before
            first = marks.pop() - before.index(pickletools.markobject) if marked else len(stack) - len(before)
            if first < (marks[-1] if marks else 0):
                raise ValueError(f"the opcode {name} at byte {place} finds too few objects")
            is_tuple = name.startswith("TUPLE") or name == "FROZENSET"
            depth = max((depth for depth, _ in stack[first:]), default=0) + is_tuple
            objects = 1 + is_tuple * sum(objects for _, objects in stack[first:])
            if depth > _DEEPEST:
                raise ValueError(f"more than {_DEEPEST} tuples within each other")
            if objects > _MOST_OBJECTS:
                raise ValueError(f"a tuple of more than {_MOST_OBJECTS} objects")
            stack[first:] = [(depth, objects)] * len(opcode.stack_after)


def _read_zip(file: BinaryIO) -> dict[str, np.ndarray]:
    """Reads a .pth that PyTorch 1.6 or later wrote."""
    with zipfile.ZipFile(file) as archive:
        check_members(archive, _size(file))
        stored = {info.filename: info for info in archive.infolist()}
        pickles = [name for name in stored if name.endswith("/data.pkl")]
        if len(pickles) != 1 or any(info.compress_type != zipfile.ZIP_STORED for info in stored.values()):
            raise ValueError("no data.pkl in it, or members that are compressed")
        folder = pickles[0].removesuffix("data.pkl")
        if f"{folder}byteorder" in stored and archive.read(f"{folder}byteorder") != b"little":
            raise ValueError("its numbers are of the other byte order")
        found = _unpickled(io.BytesIO(archive.read(pickles[0])), encoding="utf-8")
        return _values(found, lambda storage: archive.read(f"{folder}data/{storage.key}"), _size(file))


def _read_old(file: BinaryIO) -> dict[str, np.ndarray]:
    """Reads a .pth that a PyTorch before 1.6 wrote.

    It holds five pickles: the magic number, the version, the sizes of the machine's integers, the dictionary, and the
    list of the storages' keys. The storages follow in that order, each after its count of 8 bytes.
    """
    if _unpickled(file) != _MAGIC:
        raise ValueError("it begins as none does")
    for _ in range(2):
        _unpickled(file)
    unpickler = _unpickler(file, encoding="utf-8")
    found = unpickler.load()
    keys = _unpickled(file)
    contents = {}
    for key in map(_as_name, keys):
        (count,) = struct.unpack("<q", file.read(8))
        size = count * _bytes_of(unpickler.dtypes[key])
        contents[key] = file.read(size)
        if count < 0 or len(contents[key]) != size:
            raise ValueError(f"storage {key} ends early")
    return _values(found, lambda storage: contents[storage.key], _size(file))


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def _values(found: Any, read: Callable[[_Storage], bytes], size: int) -> dict[str, np.ndarray]:
    """Returns the values of the tensors in an unpickled object. Raises ValueError if they are too many.

    Args:
        read: returns the bytes of a storage, each of which is read once.
        size: bytes of the file.
    """
    storages: dict[str, np.ndarray] = {}
    result = {}
    tensors = _tensors(found)
    values = sum(math.prod(lazy.shape) for lazy in tensors.values())
    if 4 * values > _BYTES_MORE + _BYTES_FOR_EACH * size:
        raise ValueError(f"tensors of {values} values in a file of {size} bytes")
    for name, lazy in tensors.items():
        if lazy.storage.key not in storages:
            storages[lazy.storage.key] = _numbers(read(lazy.storage), lazy.storage.dtype)
        result[name] = _strided(storages[lazy.storage.key], lazy)
    return result


def _strided(numbers: np.ndarray, lazy: _Lazy) -> np.ndarray:
    """Returns a copy of a tensor's values in the numbers of its storage. Raises ValueError if it reaches beyond
    them."""
    if math.prod(lazy.shape) == 0:
        return np.zeros(lazy.shape, np.float32)
    last = lazy.offset + sum((size - 1) * step for size, step in zip(lazy.shape, lazy.stride, strict=True))
    room = len(numbers) - lazy.offset
    if lazy.offset < 0 or min(lazy.stride, default=0) < 0 or last >= len(numbers) or math.prod(lazy.shape) > room:
        raise ValueError(f"a tensor of {last + 1} values in a storage of {len(numbers)}")
    steps = [step * numbers.itemsize for step in lazy.stride]
    return np.array(np.lib.stride_tricks.as_strided(numbers[lazy.offset :], lazy.shape, steps), np.float32, order="C")


def _tensors(found: Any) -> dict[str, _Lazy]:
    """Returns the dictionary of tensors that is, or is somewhere in, an unpickled object.

    An entry such as "state_dict" is preferred to tensors beside it, such as the best accuracy so far.
    """
    waiting, seen = deque([found]), set()
    beside: dict[str, _Lazy] = {}
    while waiting:
        each = waiting.popleft()
        if not isinstance(each, dict) or id(each) in seen:
            continue
        seen.add(id(each))
        own = {_as_name(name): value for name, value in each.items() if isinstance(value, _Lazy)}
        models = [each[name] for name in _MODELS if isinstance(each.get(name), dict)]
        if own and not models:
            return own
        beside = beside or own
        waiting += [*models, *each.values()]
    return beside


def _as_name(key: Any) -> str:
    """Returns a key as text. Raises ValueError if it is neither a text nor a whole number: str() of another object may
    be of any length."""
    if not isinstance(key, str | int):
        raise ValueError(f"a tensor or storage that is named by a {type(key).__name__}")
    return str(key)


def _bytes_of(dtype: str) -> int:
    return 2 if dtype == BF16 else np.dtype(dtype).itemsize


def _numbers(content: bytes | memoryview, dtype: str) -> np.ndarray:
    """Returns the numbers in some bytes; bf16 ones as float32."""
    if dtype != BF16:
        return np.frombuffer(content, dtype)
    return (np.frombuffer(content, "<u2").astype(np.uint32) << 16).view(np.float32)


def write_state(path: str | os.PathLike, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes a state dictionary: as .safetensors if the name ends so, else as torch.save does.

    Args:
        tensors: by name, of float32 or int64.
    Raises:
        EngineError: the file cannot be written.
    """
    if str(path).endswith(".safetensors"):
        _write_safetensors(path, tensors)
        return
    with atomic_write(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", _pickle(tensors))
        archive.writestr("archive/byteorder", "little")
        for number, values in enumerate(tensors.values()):
            archive.writestr(f"archive/data/{number}", np.ascontiguousarray(values).tobytes())
        archive.writestr("archive/version", "3\n")


def _pickle(tensors: Mapping[str, np.ndarray]) -> bytes:
    """Returns the pickle of an OrderedDict of tensors. It is put together opcode by opcode, since pickle.dumps() would
    need PyTorch's classes."""
    ordered_dict = b"ccollections\nOrderedDict\n)R"
    codes = [b"\x80\x02", ordered_dict, b"("]
    for number, (name, values) in enumerate(tensors.items()):
        kind = {"f": b"FloatStorage", "i": b"LongStorage"}[values.dtype.kind]
        storage = b"(" + _text("storage") + b"ctorch\n" + kind + b"\n" + _text(str(number)) + _text("cpu")
        strides = [step // values.itemsize for step in np.empty(values.shape, values.dtype).strides]
        codes += [_text(name), b"ctorch._utils\n_rebuild_tensor_v2\n("]
        codes += [storage, _whole(values.size), b"tQ", _whole(0), _whole_numbers(values.shape), _whole_numbers(strides)]
        codes += [b"\x89", ordered_dict, b"tR"]  # requires_grad False, no hooks
    return b"".join([*codes, b"u."])


def _text(text: str) -> bytes:
    encoded = text.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def _whole(value: int) -> bytes:
    if value < 2**31:
        return b"J" + struct.pack("<i", value)
    encoded = pickle.encode_long(value)
    return b"\x8a" + bytes([len(encoded)]) + encoded


def _whole_numbers(values: Any) -> bytes:
    return b"(" + b"".join(_whole(value) for value in values) + b"t"


# .safetensors


def is_safetensors(file: BinaryIO) -> bool:
    """Returns whether a file begins as .safetensors does: with the length of a header in JSON, which fits in it."""
    file.seek(0)
    begin = file.read(9)
    return begin[8:] == b"{" and struct.unpack("<Q", begin[:8])[0] <= _size(file) - 8


def _read_safetensors(file: BinaryIO) -> dict[str, np.ndarray]:
    size = _size(file)
    (length,) = struct.unpack("<Q", file.read(8))
    if length > size - 8:
        raise ValueError(f"a header of {length} bytes in a file of {size}")
    header = json.loads(file.read(length))
    content = memoryview(file.read())
    found: dict[str, tuple[int, int, str, tuple[int, ...]]] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        shape, dtype, (begin, end) = checked_shape(entry["shape"]), _SAFE[entry["dtype"]], entry["data_offsets"]
        if not 0 <= begin <= end <= len(content) or end - begin != math.prod(shape) * _bytes_of(dtype):
            raise ValueError(f"tensor '{name}' of shape {shape} from byte {begin} to {end} of {len(content)}")
        found[name] = begin, end, dtype, shape
    ranges = sorted((begin, end) for begin, end, *_ in found.values() if begin < end)
    if any(begin < end for (_, end), (begin, _) in pairwise(ranges)):
        raise ValueError("tensors that share bytes")
    return {
        name: np.array(_numbers(content[begin:end], dtype), np.float32).reshape(shape)
        for name, (begin, end, dtype, shape) in found.items()
    }


def _write_safetensors(path: str | os.PathLike, tensors: Mapping[str, np.ndarray]) -> None:
    header: dict[str, Any] = {}
    end = 0
    for name, values in tensors.items():
        kind = {"f": "F32", "i": "I64"}[values.dtype.kind]
        header[name] = {"dtype": kind, "shape": list(values.shape), "data_offsets": [end, end + values.nbytes]}
        end += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with atomic_write(path) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for values in tensors.values():
            file.write(np.ascontiguousarray(values).tobytes())
