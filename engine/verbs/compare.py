"""Compares two caffemodels, or the histories of two solverstates, array by array, and names the first that differs.
With --model, also compares the tops of every layer in one forward pass on the same synthetic input. The exit status is
1 if anything differs by more than the tolerance, or is in one of the two only.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from engine.verbs.options import add_common, add_consent, add_phase, number

ORDER = 150
SUMMARY = "find where two trained nets, or two runs of one net, begin to differ"
EXAMPLES = [
    "engine compare a_iter_100.caffemodel b_iter_100.caffemodel",
    "engine compare a.caffemodel b.caffemodel --model net.prototxt --tolerance 1e-5",
    "engine compare x.caffemodel x.caffemodel --model net.prototxt --precision bf16 --tolerance 0.02",
]
# Arguments that have no effect without --model.
OF_NETS = ("--other_model", "--precision", "--phase", "--python_layers", "--level", "--stage", "--set")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("files", nargs=2, metavar="FILE", help="two .caffemodel or two .solverstate files")
    parser.add_argument("--model", metavar="FILE", help="the net, a prototxt: also compare what it computes")
    parser.add_argument("--other_model", metavar="FILE", help="the net of the second weights (default: the same)")
    parser.add_argument(
        "--precision", choices=["fp32", "bf16"], default="fp32", help="of the second net (default: fp32)"
    )
    parser.add_argument(
        "--tolerance",
        type=number,
        default=0.0,
        metavar="X",
        help="relative to the largest value of an array (default: 0)",
    )
    add_phase(parser, default="TEST")
    add_consent(parser)
    add_common(parser)


def run(options: Namespace) -> int:
    from engine.examine.compare import compare_files, compare_nets, to_text
    from engine.report.log import set_up
    from engine.verbs.runtime import asked_net, phase_of, refuse_idle, show

    set_up()
    if not options.model:
        refuse_idle(options, OF_NETS, "without --model")
    found = [compare_files(*options.files)]
    if options.model:
        net = asked_net(options, options.model)
        other = asked_net(options, options.other_model) if options.other_model not in (None, options.model) else net
        first, second = options.files
        found.append(compare_nets((net, other), ([first], [second]), phase_of(options.phase), options.precision))
    show("\n\n".join(to_text(each, options.tolerance) for each in found))
    return int(any(each.differs(options.tolerance) for each in found))
