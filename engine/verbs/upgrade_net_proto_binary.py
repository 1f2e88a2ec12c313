"""Reads a caffemodel in any of Caffe's formats and writes it in the current one, with unchanged weights."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from engine.verbs.options import add_in_out

ORDER = 190
SUMMARY = "write an old caffemodel in the current format"
EXAMPLES = [
    "engine upgrade_net_proto_binary old.caffemodel new.caffemodel",
]


def add_arguments(parser: ArgumentParser) -> None:
    add_in_out(parser, "the weights, a .caffemodel")


def run(options: Namespace) -> int:
    from engine.config.upgrade_files import upgrade_net_binary
    from engine.verbs.runtime import upgrade

    return upgrade(options, upgrade_net_binary, "NetParameter binary proto")
