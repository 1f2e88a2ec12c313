"""Reads a net's prototxt in any of Caffe's formats (V0, V1, inputs without a layer, renamed fields) and writes it in
the current one. Comments are lost.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from engine.verbs.options import add_in_out

ORDER = 180
SUMMARY = "write an old net in the current format"
EXAMPLES = [
    "engine upgrade_net_proto_text old.prototxt new.prototxt",
]


def add_arguments(parser: ArgumentParser) -> None:
    add_in_out(parser, "the net, a prototxt")


def run(options: Namespace) -> int:
    from engine.config.upgrade_files import upgrade_net_text
    from engine.verbs.runtime import upgrade

    return upgrade(options, upgrade_net_text, "NetParameter text proto")
