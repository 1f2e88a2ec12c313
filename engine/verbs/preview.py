"""Draws a contact sheet of the first samples of a net's data, as the net sees them: after all of transform_param and in
the order of the seed, with labels (by name where there is a labels.txt), boxes, and masks beside their pictures.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from engine.verbs.options import add_common, add_phase, uint32, up_to_1000

ORDER = 65
SUMMARY = "draw a batch as the net sees it"
EXAMPLES = [
    "engine preview net.prototxt batch.png",
    "engine preview net.prototxt batch.png --phase TEST --count 64",
    "engine preview net.prototxt batch.png --set 'layer[data].transform_param.mirror=false'",
]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("model", metavar="NET", help="the net, a prototxt, with its data")
    parser.add_argument("target", metavar="OUT", help="the picture: .png or .jpg")
    parser.add_argument("--count", type=up_to_1000, default=32, metavar="N", help="samples to show (default: 32)")
    parser.add_argument("--seed", type=uint32, default=1, metavar="N", help="a run's random_seed (default: 1)")
    add_phase(parser)
    add_common(parser)


def run(options: Namespace) -> int:
    from engine.comm.world import World
    from engine.examine.preview import check_name, preview, save
    from engine.files import check_writable
    from engine.report.log import log, set_up
    from engine.verbs.runtime import asked_net, phase_of

    set_up()
    check_name(options.target)
    check_writable(options.target)
    config = asked_net(options, options.model)
    sheet, count, notes = preview(config, phase_of(options.phase), World(), options.seed, options.count)
    save(sheet, options.target)
    for note in notes:
        log(note)
    log(f"Wrote the first {count} samples to {options.target}")
    return 0
