"""Writes docs/layers.md, the table of layer types, from the registry and the sources: `python tools/layer_table.py`.

What a layer runs on is read off its lower() (which ops it becomes) and off the C++ files of those ops (which make
primitives of oneDNN and which have kernels of their own).
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from engine import proto  # noqa: E402
from engine.data.registry import find_reader  # noqa: E402
from engine.layers.base import Layer  # noqa: E402
from engine.layers.registry import layer_types  # noqa: E402

TARGET = ROOT / "docs/layers.md"
HEADER = """# Layers

Written by `python tools/layer_table.py` from the registry and the sources: change those, not this.

Bottoms and tops: how many the type takes. Options: fields of LayerParameter in `proto/caffe.proto` (besides `param`,
`loss_weight`, `include`, ..., which every type has). Backward: whether gradients pass through. bf16: whether the layer
computes in bf16 under `precision: BF16`; the others run in fp32 there, too. Kernel: whether its ops run on primitives
of oneDNN (some with loops of ours around them) or on kernels of `csrc/ops` alone.

| type | | bottoms, tops | options | parameter blobs | backward | bf16 | kernel |
|---|---|---|---|---|---|---|---|
"""
_PRIMITIVE = re.compile(
    r"dnnl::(convolution|deconvolution|matmul|inner_product|eltwise|pooling|lrn|softmax|prelu|binary|sum|reduction|"
    r"lstm|vanilla_rnn|batch_normalization|layer_normalization)\w*\b(?!_t)"
)
_FIELDS = set(proto.LayerParameter.DESCRIPTOR.fields_by_name)


def text() -> str:
    """The whole file."""
    rows: dict[str, list[str]] = {}  # the rest of a row -> types
    for name, cls in sorted(layer_types().items(), key=lambda item: item[0].lower()):
        rows.setdefault(" | ".join(_cells(name, cls)), []).append(f"`{name}`")
    return HEADER + "".join(f"| {', '.join(names)} | {cells} |\n" for cells, names in rows.items())


def _cells(name: str, cls: type[Layer]) -> Iterator[str]:
    ops = _ops(name, cls)
    fed = _count(cls.bottom_range) == "0"
    yield _summary(name, cls)
    yield f"{_count(cls.bottom_range)}, {_count(cls.top_range)}"
    yield ", ".join(f"`{field}`" for field in _options(name, cls))
    yield _blobs(cls)
    yield "" if fed and not _blobs(cls) else "yes" if cls.differentiable else "no"
    yield "yes" if cls.bf16 and ops else ""
    yield " + ".join(sorted({_kernel(op) for op in ops}, key=str.lower, reverse=True))


def _summary(name: str, cls: type[Layer]) -> str:
    """The first paragraph of the module's docstring; of data layers, that of what reads them, "Type: what it is"."""
    module = find_reader(name).__module__ if _is_read(cls) else cls.__module__
    paragraph = " ".join(inspect.getdoc(sys.modules[module]).split("\n\n")[0].split()).rstrip(".").replace("|", "\\|")
    return paragraph.removeprefix(f"{name}: ") if _is_read(cls) else paragraph


def _is_read(cls: type[Layer]) -> bool:
    return getattr(cls, "from_source", False)


def _count(given) -> str:
    if isinstance(given, property):
        return "as its options say"
    least, most = given
    return str(least) if least == most else f"{least} or more" if most is None else f"{least} to {most}"


def _own_classes(cls: type) -> list[type]:
    return [each for each in cls.__mro__ if issubclass(each, Layer) and each is not Layer]


def _options(name: str, cls: type[Layer]) -> list[str]:
    """Those that the classes read, and of data layers their readers."""
    classes = find_reader(name).__mro__[:-1] if _is_read(cls) else _own_classes(cls)
    sources = "".join(inspect.getsource(each) for each in classes)
    found = set(re.findall(rf"{'' if _is_read(cls) else 'self[.]'}\bmessage\.(\w+_param)\b", sources)) & _FIELDS
    return sorted(found)


def _blobs(cls: type[Layer]) -> str:
    """What the docstring says of them."""
    found = re.search(r"\bparams: (.*?)(?:\.\s|\.?$|\n\n)", inspect.getdoc(cls) or "", re.DOTALL)
    return re.sub(r"\s+", " ", found[1]) if found else ""


def _ops(name: str, cls: type[Layer]) -> set[str]:
    """The ops of lower() and of the methods that it calls."""
    if not any("lower" in vars(each) for each in _own_classes(cls)):
        return {name} & set(_files())
    found: set[str] = set()
    for source in _lowering(cls):
        found |= set(re.findall(r'builder\.op\(\s*"(\w+)"', source))
        found |= set(re.findall(r'"(\w+)" if [\w.]+ else', source)) | set(re.findall(r'else "(\w+)"', source))
        found |= {name} if re.search(r"builder\.op\(\s*self\.type", source) else set()
    return found & set(_files())


def _lowering(cls: type[Layer]) -> list[str]:
    """Sources of lower(), of what it overrides where it calls that, and of other methods that are given the builder."""
    sources, seen, waiting = [], set(), ["lower"]
    while waiting:
        method = waiting.pop()
        for each in cls.__mro__:
            if method in seen or method not in vars(each) or not inspect.isfunction(vars(each)[method]):
                continue
            source = inspect.getsource(vars(each)[method])
            if "builder" in source:
                sources.append(source)
                waiting += re.findall(r"self\.(\w+)\(", source)
            if f"super().{method}(" not in source:
                seen.add(method)
    return sources


@functools.cache
def _files() -> dict[str, str]:
    """Op -> the source of the file that registers it, with the headers of csrc/ops that it includes and, of classes
    that ops derive from (x_op.h), their source and what that includes."""
    texts = {path.name: path.read_text() for path in sorted((ROOT / "csrc/ops").iterdir())}

    def with_headers(source: str) -> str:
        found = source
        for header in re.findall(r'#include "(\w+\.h)"', source):
            text = texts.get(header, "")
            found += with_headers(text) + texts.get(f"{header[:-2]}.cpp", "") if header.endswith("_op.h") else text
        return found

    found = {}
    for source in texts.values():
        for registered in re.findall(r"^static const RegisterOp<[^;]*;", source, re.MULTILINE):
            found |= dict.fromkeys(re.findall(r'\("(\w+)"\)', registered), with_headers(source))
    return found


def _kernel(op: str) -> str:
    return "oneDNN" if _PRIMITIVE.search(_files()[op]) else "own"


def main() -> None:
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(text())
    print(f"wrote {TARGET.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
