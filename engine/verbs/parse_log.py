"""Reads the log of a training run, engine's or Caffe's, and writes DIR/LOG.train and DIR/LOG.test (.test1, ... for
further test nets) with columns NumIters, Seconds, LearningRate, each output, and the smoothed loss.
"""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace

ORDER = 160
SUMMARY = "turn a run's log into CSV"
EXAMPLES = [
    "engine parse_log run.log .   # of `engine train --solver solver.prototxt 2> run.log`",
]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("log", metavar="LOG", help="what training wrote to stderr, or Caffe's log file")
    parser.add_argument("folder", metavar="DIR", help="where the CSV files go")
    parser.add_argument(
        "--delimiter",
        type=delimiter,
        default=",",
        metavar="CHARACTER",
        help="between columns (default: a comma); \\t: a tab",
    )


def delimiter(text: str) -> str:
    """Returns one character that csv can write between columns; for \\t, a tab, which is hard to type in a shell."""
    character = "\t" if text == r"\t" else text
    if len(character) != 1 or character in '"\r\n':
        raise ArgumentTypeError(f"expected one character, neither a quote nor a line's end, got {text!r}")
    return character


def run(options: Namespace) -> int:
    from engine.report.log import log, set_up
    from engine.report.parse_log import write_csv

    set_up()
    for path in write_csv(options.log, options.folder, options.delimiter):
        log(f"Wrote {path}")
    return 0
