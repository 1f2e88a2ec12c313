"""Holds arguments that several verbs share, and types of arguments. Imports nothing that takes long."""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Sequence

from engine.errors import printable, shortened

LARGEST = 2**31 - 1  # the largest int32 of the schema
LARGEST_FLOAT = (2 - 2**-23) * 2.0**127  # its largest float
OF_RUNS = ("--precision", "--python_layers", "--level", "--stage", "--set")  # flags that add_running() adds

# Types of arguments: each returns the value of a text, and raises ArgumentTypeError if it has none.


def comma_separated(text: str) -> list[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:  # such as a shell's variable that is not set
        raise argparse.ArgumentTypeError(f"expected at least one, separated by commas, got {printable(repr(text))}")
    return words


def whole(text: str, wanted: str, low: int, high: int = LARGEST) -> int:
    """Returns a whole number from low to high. Raises ArgumentTypeError, which says what is `wanted`, if the text is
    none."""
    from engine.config import numbers  # here, for it takes long to load, and --help does without

    value = numbers.whole(text, low, high)
    if value is None:
        raise argparse.ArgumentTypeError(f"expected {wanted}, got {shortened(printable(repr(text)), 80)}")
    return value


def positive(text: str) -> int:
    return whole(text, "a whole number above 0", 1)


def up_to_1000(text: str) -> int:
    """Returns a number of samples on a sheet: with more, nobody could see them."""
    return whole(text, "a whole number from 1 to 1000", 1, 1000)


def int32(text: str) -> int:
    return whole(text, "a whole number of 32 bits", -LARGEST - 1)


def uint32(text: str) -> int:
    return whole(text, f"a whole number from 0 to {2**32 - 1}", 0, 2**32 - 1)


def side(text: str) -> int:
    """Returns pixels, or 0."""
    return whole(text, "pixels from 0 to 65536", 0, 1 << 16)


def number(
    text: str, wanted: str = "a number, 0 or more", least: float = 0.0, most: float = sys.float_info.max
) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"expected {wanted}, got {text!r}")
    return value


def finite(text: str) -> float:
    return number(text, "a number", -LARGEST_FLOAT, LARGEST_FLOAT)


def above_zero(text: str) -> float:
    return number(text, "a number above 0", sys.float_info.min)


def seconds(text: str) -> str:
    """Checks a number of seconds. Returns the text itself, for a variable of the environment."""
    number(text, "seconds, 0 or more")
    return text


def automatic(text: str) -> str:
    if text != "auto":
        raise argparse.ArgumentTypeError(f"expected auto, got {text!r}; --snapshot FILE goes on from a .solverstate")
    return text


def positives(text: str) -> list[int]:
    return [positive(word) for word in comma_separated(text)]


def numbers(text: str) -> list[float]:
    try:
        return [finite(word) for word in text.split(",")]
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"expected numbers separated by commas, got {text!r}") from None


def two_numbers(text: str) -> tuple[int, int]:
    height, comma, width = text.partition(",")
    if not comma:
        raise argparse.ArgumentTypeError(f"expected height,width, got {text!r}")
    return positive(height), positive(width)


def size(text: str) -> int:
    """Returns the bytes of "1.5GB", "800 MB" or a plain number."""
    found = re.fullmatch(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([KMG]?)B?", text.strip().upper())
    count = int(float(found[1]) * {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}[found[2]]) if found else 0
    if count == 0:
        raise argparse.ArgumentTypeError(f"expected a size above 0 such as 1.5GB or 800MB, got {text!r}")
    return count


# Arguments


def add_common(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of every verb that builds nets."""
    parser.add_argument("--level", type=int32, help="level of the net's state, for layers with min_level or max_level")
    parser.add_argument(
        "--stage",
        type=comma_separated,
        default=[],
        metavar="A,B",
        help="stages of the net's state, for layers with stage or not_stage",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="override a field of the solver or net: max_iter=100, 'layer[data].data_param.source=/x' (repeatable)",
    )


def add_running(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of every verb that runs nets; OF_RUNS has their names."""
    parser.add_argument(
        "--precision",
        choices=["fp32", "bf16"],
        help="precision of activations and their gradients; weights stay fp32 (default: the solver's if there is one, "
        "else fp32)",
    )
    add_consent(parser)
    add_common(parser)


def add_consent(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--python_layers",
        action="store_true",
        help="run the code that the net's Python layers name, modules beside the net or in PYTHONPATH: only for nets "
        "whose authors you trust (also ENGINE_PYTHON_LAYERS=1)",
    )


def kernels(text: str) -> str:
    """Returns "default", "measure", or the path of a table, which must exist."""
    if text not in ("default", "measure") and not os.path.exists(text):
        raise argparse.ArgumentTypeError(f"expected default, measure or the file of a table, got {text!r}")
    return text


def add_kernels(parser: argparse.ArgumentParser, snapshot: str = "") -> None:
    """Adds --kernels. snapshot: words before the default, for verbs that may go on from a snapshot."""
    parser.add_argument(
        "--kernels",
        type=kernels,
        metavar="default|measure|FILE",
        help="how the kernels of convolutions and inner products are chosen: by rules of thumb, by measurement (once; "
        f"kept in the user's cache folder), or as a table says that was kept (default: {snapshot}default)",
    )


def add_skip(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--skip_bad_images", action="store_true", help="replace images that cannot be decoded, and count them"
    )


def add_budget(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--memory_budget",
        type=size,
        metavar="SIZE",
        help="limit for blobs, gradients and masks, such as 1.5GB; norms and activations are computed twice to meet it "
        "(default: no limit)",
    )


def add_phase(parser: argparse.ArgumentParser, default: str = "TRAIN") -> None:
    parser.add_argument(
        "--phase", choices=["TRAIN", "TEST"], default=default, help=f"phase of the net (default: {default})"
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Adds --json FILE, for verbs that print a result for people, too."""
    parser.add_argument(
        "--json",
        metavar="FILE",
        help="also write everything as JSON ('-': to the standard output, and what is for people to stderr)",
    )


def add_in_out(parser: argparse.ArgumentParser, what: str) -> None:
    """Adds the arguments of verbs that write a file in the current format. what: the file that they read."""
    parser.add_argument("source", metavar="IN", help=what)
    parser.add_argument("target", metavar="OUT", help="the file to write")


def add_output(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that say how pictures are written to a database."""
    add_sizes(parser)
    parser.add_argument("--encoded", action="store_true", help="store image files (JPEG, PNG) instead of pixels")
    parser.add_argument(
        "--encode_type",
        default="",
        metavar="KIND",
        help="format of --encoded: jpg, png, bmp (default: each file's own)",
    )


def add_backend(parser: argparse.ArgumentParser, kinds: Sequence[str]) -> None:
    """Adds Caffe's flag for the kind of DB. It has no effect: the name or the content of DB tells its kind."""

    def backend(text: str) -> str:
        if text not in kinds:
            raise argparse.ArgumentTypeError(f"expected {' or '.join(kinds)}, got {text!r}")
        return text

    parser.add_argument("--backend", type=backend, metavar="lmdb", help="Caffe's word for what DB is; has no effect")


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments for the size and the channels of pictures that are written, and the quality of JPEGs."""
    parser.add_argument(
        "--resize_height", type=side, default=0, metavar="N", help="0: keep each image's height (default)"
    )
    parser.add_argument(
        "--resize_width", type=side, default=0, metavar="N", help="0: keep each image's width (default)"
    )
    parser.add_argument(
        "--shorter_side", type=side, default=0, metavar="N", help="bring each image's shorter side to N, keep its shape"
    )
    parser.add_argument(
        "--max_side", type=side, default=0, metavar="N", help="shrink images whose longer side is more than N"
    )
    parser.add_argument("--gray", action="store_true", help="store one channel")
    parser.add_argument("--quality", type=positive, default=95, metavar="Q", help="of JPEGs, 1 to 100 (default: 95)")
