"""Reads nets or solvers, builds their graphs for training and testing without their data, and prints layers, shapes,
parameters, FLOPs and memory. Decodes every item of a source of data (an LMDB, a folder or archive of images, ...), and
lists what is broken. All errors of all files are reported; the exit status is then 1. User code and files that are not
on this machine are listed, and are errors with --strict only. Where a data source is absent, the shape of the images is
taken from crop_size and the mean values.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from engine.verbs.options import add_common, add_consent, positive

ORDER = 60
SUMMARY = "find the errors in nets and solvers, and show what they cost"
EXAMPLES = [
    "engine check solvers/*.prototxt",
    "engine check nets/resnet50.prototxt --json",
    "engine check solver.prototxt --ranks 896 --plot schedule.png",
    "engine check --run models/",
    "engine check train_lmdb",
]
# Arguments that have no effect on data.
OF_NETS = ("--run", "--strict", "--ranks", "--plot", "--python_layers", "--level", "--stage", "--set")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="a net or a solver (recognised by its content), several with commas between them, as --solver has them, a "
        "folder, for all .prototxt files below it, or data",
    )
    parser.add_argument(
        "--run",
        action="store_true",
        help="take one training or test step of each net on synthetic data, in a separate process, and print a line "
        "that says whether it runs",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="exit status 1 also where user code (modules of Python layers) or files (data, weights, mean files, nets "
        "of solvers) are absent",
    )
    parser.add_argument(
        "--ranks", type=positive, default=1, metavar="N", help="ranks that the solvers are to run on (default: 1)"
    )
    parser.add_argument(
        "--plot",
        metavar="FILE",
        help="draw learning rate, weight decay and momentum of the solvers over their runs: .png, .svg or .pdf",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    add_consent(parser)
    add_common(parser)


def run(options: Namespace) -> int:
    from engine.examine.check import check_file, files_below
    from engine.examine.check_data import is_data
    from engine.examine.check_text import draw_schedules, raise_errors, summary, to_json, to_text
    from engine.files import check_apart
    from engine.verbs.runtime import refuse_idle, show, write_json

    data = [path for path in options.files if not path.endswith(".prototxt") and is_data(path)]
    if data and len(data) == len(options.files):
        refuse_idle(options, OF_NETS, "on data alone")
    elif options.run:
        refuse_idle(options, ("--ranks", "--plot"), "with --run")
    else:
        refuse_idle(options, ("--python_layers",), "without --run: no code is run")
    decoded, broken = _decode_all(data, options.json)
    if data and len(data) == len(options.files):
        if options.json:
            write_json(decoded[0] if len(decoded) == 1 else {"data": decoded}, "-")
        return int(broken)
    paths = files_below(path for path in options.files if path not in data)
    found: dict[str, object] = {"data": decoded} if data else {}  # for JSON
    if options.run:
        return int(_take_steps(options, paths, found) or broken)
    reports = [check_file(path, options.set, options.level, options.stage, options.ranks) for path in paths]
    if options.plot:
        check_apart(options.plot, *paths, *(net.file for report in reports for net in report.nets))
    if options.json:
        write_json(found | {"files": [to_json(report) for report in reports]}, "-")
    else:
        show("\n\n".join([*map(to_text, reports), *([summary(reports)] if len(reports) > 1 else [])]))
    raise_errors(reports)
    if options.plot:
        draw_schedules(reports, options.plot)
    lacks = options.strict and any(report.lacks for report in reports)
    return int(broken or lacks)


def _decode_all(paths: list[str], silent: bool) -> tuple[list[object], bool]:
    """Decodes sources of data. Returns what there is in each, for JSON, and whether anything is broken."""
    from engine.examine.check_data import check_data
    from engine.report.progress import Progress
    from engine.verbs.runtime import show

    found, broken = [], False
    for path in paths:
        with Progress("Checking") as progress:
            report = check_data(path, progress.update)
        found.append(report.to_json())
        if not silent:
            show("\n".join(report.lines()))
        broken |= bool(report.broken)
    return found, broken


def _take_steps(options: Namespace, paths: list[str], found: dict[str, object]) -> bool:
    """Takes a step of each net; returns whether one fails. found: what the JSON has besides."""
    from dataclasses import asdict

    from engine.examine.check_run import check_and_run, line_of, summary
    from engine.verbs.runtime import allow_python_layers, show, write_json

    rows = []
    for row in check_and_run(paths, options.set, options.level, options.stage, allow_python_layers(options)):
        rows.append(row)
        if not options.json:
            show(line_of(row))
    if options.json:
        write_json(found | {"runs": [asdict(row) for row in rows]}, "-")
    else:
        show(summary(rows))
    return any(row.reason and (options.strict or not row.lacks) for row in rows)
