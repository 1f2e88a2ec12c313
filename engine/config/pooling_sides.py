"""Reads windows of Pooling with a number for each side, for which BVLC's opencl branch repeats kernel_size, stride and
pad; all other forks take these once."""

from __future__ import annotations

from collections.abc import Iterator

from engine.config.prototext import Node
from engine.errors import ConfigError

_FIELDS = ("kernel_size", "stride", "pad")


def name_sides(nodes: list[Node]) -> Iterator[str]:
    """Renames repeated fields in the nodes of a text: two become _h and _w, three become _3d; equal ones become one.

    Yields a note on each field that it renames. Raises ConfigError if a side is given by another field, too."""
    for node in nodes:
        if not isinstance(node.value, list):
            continue
        if node.name != "pooling_param":
            yield from name_sides(node.value)
            continue
        for field in _FIELDS:
            given = [each for each in node.value if each.name == field]
            if all(each.value == given[0].value for each in given[1:]):
                node.value = [each for each in node.value if each.name != field or each is given[0]]
            elif len(given) <= 3:
                short = field.removesuffix("_size")
                for other in (f"{short}_h", f"{short}_w", f"{field}_3d"):
                    if any(each.name == other for each in node.value):
                        raise ConfigError(f"both '{field}' and '{other}' are given; keep one of them", given[0].where)
                names = [f"{short}_h", f"{short}_w"] if len(given) == 2 else [f"{field}_3d"] * 3
                for each, name in zip(given, names, strict=True):
                    each.name = name
                told = f"{field} is given {len(given)} times, once for each side, as in BVLC's opencl branch"
                yield f"{given[0].where}: {told}"
