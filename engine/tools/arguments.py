"""What the tools' verbs take; beside engine/arguments.py. Imports nothing heavy."""

from __future__ import annotations

from engine.options import add_verb


def _add_upgrade_net_proto_text(verbs) -> None:
    verb = add_verb(
        verbs,
        "upgrade_net_proto_text",
        "write an old net in the current format",
        "Reads a net's prototxt in any of Caffe's formats (V0, V1, inputs without a layer, renamed fields) and writes "
        "it in the current one. Comments are lost.",
        "engine upgrade_net_proto_text old.prototxt new.prototxt",
    )
    _add_in_out(verb, "the net, a prototxt")


def _add_upgrade_net_proto_binary(verbs) -> None:
    verb = add_verb(
        verbs,
        "upgrade_net_proto_binary",
        "write an old caffemodel in the current format",
        "Reads a caffemodel in any of Caffe's formats and writes it in the current one, the weights unchanged.",
        "engine upgrade_net_proto_binary old.caffemodel new.caffemodel",
    )
    _add_in_out(verb, "the weights, a .caffemodel")


def _add_upgrade_solver_proto_text(verbs) -> None:
    verb = add_verb(
        verbs,
        "upgrade_solver_proto_text",
        "write an old solver in the current format",
        "Reads a solver's prototxt and writes it with `type` for the older `solver_type`. Comments are lost.",
        "engine upgrade_solver_proto_text old_solver.prototxt new_solver.prototxt",
    )
    _add_in_out(verb, "the solver, a prototxt")


def _add_in_out(verb, what: str) -> None:
    verb.add_argument("source", metavar="IN", help=what)
    verb.add_argument("target", metavar="OUT", help="the file to write")


ADD = (
    _add_upgrade_net_proto_text,
    _add_upgrade_net_proto_binary,
    _add_upgrade_solver_proto_text,
)
