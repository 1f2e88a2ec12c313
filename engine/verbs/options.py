"""What the verbs of the command line share: the form of their help, types of arguments, common options."""

from __future__ import annotations

import argparse
import re
import sys


def add_verb(verbs, name: str, summary: str, description: str, examples: str) -> argparse.ArgumentParser:
    verb = verbs.add_parser(
        name,
        help=summary,
        description=description,
        epilog="examples:\n" + "\n".join(f"  {line}" for line in examples.splitlines()),
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
    )
    return verb


class _HelpFormatter(argparse.HelpFormatter):
    """Fills paragraphs, but leaves examples as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("examples:") else super()._fill_text(text, width, indent)


def comma_separated(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got {text!r}")
    return int(text)


def number(text: str, wanted: str = "a number, 0 or more", least: float = 0.0) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not least <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected {wanted}, got {text!r}")
    return value


def above_zero(text: str) -> float:
    return number(text, "a number above 0", sys.float_info.min)


def seconds(text: str) -> str:
    """Checks a number of seconds; returns the text, for the environment."""
    number(text, "seconds, 0 or more")
    return text


def positives(text: str) -> list[int]:
    return [positive(part) for part in comma_separated(text)] or [positive(text)]


def add_common(verb: argparse.ArgumentParser) -> None:
    """Options of every verb that builds nets."""
    verb.add_argument("--level", type=int, help="level of the net's state, for layers with min_level or max_level")
    verb.add_argument(
        "--stage",
        type=comma_separated,
        default=[],
        metavar="A,B",
        help="stages of the net's state, for layers with stage or not_stage",
    )
    verb.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="override a field of the solver or net: max_iter=100, layer[data].data_param.source=/x (repeatable)",
    )


def add_running(verb: argparse.ArgumentParser) -> None:
    """Options of every verb that runs nets."""
    verb.add_argument(
        "--precision",
        choices=["fp32", "bf16"],
        help="precision of activations and their gradients; weights stay fp32 (default: the solver's, else fp32)",
    )
    add_common(verb)


def add_skip(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--skip_bad_images", action="store_true", help="replace images that cannot be decoded, and count them"
    )


def size(text: str) -> int:
    """Bytes, from "1.5GB", "800 MB" or a plain number."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)B?", text.strip().upper())
    count = int(float(found[1]) * {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}[found[2]]) if found else 0
    if count == 0:
        raise argparse.ArgumentTypeError(f"expected a size above 0 such as 1.5GB or 800MB, got {text!r}")
    return count


def add_budget(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--memory_budget",
        type=size,
        metavar="SIZE",
        help="limit for blobs, gradients and masks, such as 1.5GB; norms and activations are computed twice to meet it "
        "(default: no limit)",
    )
