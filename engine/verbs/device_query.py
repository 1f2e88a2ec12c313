"""Prints the processor, the cores that this process may use, its memory, and the versions of oneDNN and MPI."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

ORDER = 70
RANKS = True
SUMMARY = "show what this machine offers"
EXAMPLES = [
    "engine device_query",
    "engine device_query --json",
]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: Namespace) -> int:
    from engine.examine.device import device, to_text
    from engine.verbs.runtime import show, write_json

    found = device()
    if options.json:
        write_json(found, "-")
    else:
        show(to_text(found))
    return 0
