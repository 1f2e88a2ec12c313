"""Prints a line for each layer of a net in one phase: its options, the shapes of its tops, its parameters with their
lr_mult and decay_mult, its FLOPs. The data is not needed. engine check finds the errors in a net and shows its memory.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from engine.verbs.options import add_common, add_phase

ORDER = 120
SUMMARY = "list the layers of a net"
EXAMPLES = [
    "engine summarize nets/resnet50.prototxt",
    "engine summarize net.prototxt --phase TEST",
]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("model", metavar="NET", help="the net, a prototxt")
    add_phase(parser)
    add_common(parser)


def run(options: Namespace) -> int:
    from engine.examine.summarize import net_graph, summarize
    from engine.verbs.runtime import asked_net, phase_of, show

    config = asked_net(options, options.model)
    show(summarize(net_graph(config, phase_of(options.phase))))
    for note in config.notes:
        show(f"note: {note}")
    return 0
