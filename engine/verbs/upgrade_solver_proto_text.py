"""Reads a solver's prototxt and writes it with `type` in place of the older `solver_type`. Comments are lost."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from engine.verbs.options import add_in_out

ORDER = 200
SUMMARY = "write an old solver in the current format"
EXAMPLES = [
    "engine upgrade_solver_proto_text old_solver.prototxt new_solver.prototxt",
]


def add_arguments(parser: ArgumentParser) -> None:
    add_in_out(parser, "the solver, a prototxt")


def run(options: Namespace) -> int:
    from engine.config.upgrade_files import upgrade_solver_text
    from engine.verbs.runtime import upgrade

    return upgrade(options, upgrade_solver_text, "SolverParameter text proto")
