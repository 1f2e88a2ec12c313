"""Writes a picture of a net in one phase: a box for each layer, together with the in-place layers that follow it, and
an arrow for each blob, with its shape if the net can be built. Needs pygraphviz (pip install prototxt-engine[plot]),
except for .dot.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from engine.verbs.options import add_common, add_phase

ORDER = 110
SUMMARY = "draw a net"
EXAMPLES = [
    "engine draw_net nets/googlenet.prototxt googlenet.svg",
    "engine draw_net net.prototxt net.png --rankdir LR --phase TEST",
]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("model", metavar="NET", help="the net, a prototxt")
    parser.add_argument("target", metavar="OUT", help="the picture: .svg, .png, .pdf, or .dot for graphviz's language")
    parser.add_argument(
        "--rankdir", choices=["TB", "LR"], default="TB", help="draw downwards or to the right (default: TB)"
    )
    add_phase(parser)
    add_common(parser)


def run(options: Namespace) -> int:
    from engine.config.phases import kept_layers
    from engine.errors import ConfigError
    from engine.examine.summarize import net_graph
    from engine.report.draw_net import draw_layers, draw_net
    from engine.report.log import log, set_up
    from engine.verbs.runtime import asked_net, phase_of

    set_up()
    config = asked_net(options, options.model)
    phase = phase_of(options.phase)
    try:
        draw_net(net_graph(config, phase), options.target, options.rankdir)
    except ConfigError as error:  # a picture may show what is wrong
        layers = [config.message.layer[index] for index in kept_layers(config, phase)]
        draw_layers(config.message.name, layers, options.target, options.rankdir)
        config.notes.append(f"the net cannot be built, it is drawn without shapes: {str(error).splitlines()[0]}")
    for note in config.notes:
        log(f"note: {note}")
    log(f"Drawing net to {options.target}")
    return 0
