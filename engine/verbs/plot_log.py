"""Plots training and test loss, the other test results and the learning rate over the iterations, for one log or
several in the same plot. Needs matplotlib: pip install prototxt-engine[plot].
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

ORDER = 170
SUMMARY = "plot the curves of runs from their logs"
EXAMPLES = [
    "engine plot_log curve.png run.log",
    "engine plot_log both.svg fp32.log bf16.log",
]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("target", metavar="OUT", help="the picture: .png, .svg or .pdf")
    parser.add_argument("logs", metavar="LOG", nargs="+", help="logs of training runs, engine's or Caffe's")


def run(options: Namespace) -> int:
    from engine.files import check_apart
    from engine.report.log import log, set_up
    from engine.report.plot_log import plot_logs

    set_up()
    check_apart(options.target, *options.logs)
    plot_logs(options.logs, options.target)
    log(f"Wrote {options.target}")
    return 0
