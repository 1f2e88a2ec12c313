"""`engine check --run`: lets each net take one step in a separate process, and counts failures by reason."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field

from engine.errors import printable
from engine.examine.check import check_file
from engine.examine.check_net import FITS_NONE
from engine.examine.check_report import FileReport
from engine.examine.trial import Outcome, Trial
from engine.host.launch import own_command
from engine.report.table import human

TIME_LIMIT = 600  # seconds of a trial

# What an error says, and the reason that it is counted under; the first that matches counts.
_REASONS = (
    (FITS_NONE, "its data are not here"),
    (r"VideoData", "reads a video"),
    (r"unknown layer type '([^']*)'", "layer type {} is not there"),
    (r"(\w+(?:: \w+)?) is [^:;]*'s and is not supported", "{} is not supported"),
    (r"--python_layers", "Python layer that may not be imported"),
    (r"[Pp]ython layer|python_param|module '", "Python layer whose code is not there"),
    (r"its shape is not given", "input without a shape"),
    (r": the net has no layers", "nothing in it"),
    (r"names no net", "solver without a net to train"),
    (r"is not in the current folder", "solver whose net is not there"),
    (r" needs .* are free: ", "memory"),
    (r"neither solvers nor nets|unknown field|expected .* in prototxt|cannot be read: ", "cannot be read"),
)


@dataclass
class Row:
    """How far one file came in one phase."""

    file: str
    kind: str
    phase: str
    stage: str  # "reads", "builds" or "runs"; "" for a file that cannot be read
    reason: str = ""  # why it came no further; "" if it runs
    message: str = ""
    outcome: Outcome = field(default_factory=Outcome)
    lacks: bool = False  # whether it is wrong only in that user code or a file is not here


def check_and_run(
    paths: Iterable[str],
    overrides: Iterable[str],
    level: int | None,
    stages: Iterable[str],
    python_layers: bool = False,
) -> Iterator[Row]:
    """Checks and tries every file in every phase in which it has something to run; yields a row for each.

    Args:
        python_layers: whether trials may import the modules of Python layers.
        overrides, level, stages: see check_file().
    """
    state = (level, tuple(stages), tuple(overrides), python_layers)
    for path in paths:
        yield from _run_file(check_file(path, state[2], level, state[1]), state)


def _run_file(report: FileReport, state: tuple) -> Iterator[Row]:
    phases = _phases(report)
    problems = [*report.errors, *report.absent_code, *report.refused]
    if problems or not phases:
        # A step needs no folder for snapshots. That a net fits no data comes first: it tells more than what is absent.
        absent = [each for each in report.absent_files if "there is no folder" not in each]
        stopped_by = [*problems, *sorted(absent, key=lambda each: FITS_NONE not in each)]
        reason, message = "nothing in it", "the net has no layers"
        if stopped_by:
            reason, message = reason_of(stopped_by[0]), stopped_by[0]
        stage, lacks = "reads" if report.kind else "", bool(report.lacks) and not report.errors
        yield Row(report.file, report.kind, "", stage, reason, message, lacks=lacks)
        return
    for phase in phases:
        supposed = next(net.supposition for net in report.nets if phase in net.phases)
        outcome = run_apart(
            Trial(report.file, report.kind, phase, *state, picture=supposed.picture, labels=supposed.labels)
        )
        reason = outcome.reason
        if reason == "refused":
            reason = reason_of(outcome.message)
        yield Row(report.file, report.kind, phase, "builds" if reason else "runs", reason, outcome.message, outcome)


def _phases(report: FileReport) -> list[str]:
    """Returns the phases to try: TRAIN for a solver; for a net TEST, and TRAIN if it has a loss."""
    if report.kind == "solver":  # its net may be absent
        return ["TRAIN"] * any("TRAIN" in net.phases for net in report.nets)
    trains = any("TRAIN" in net.phases and net.has_loss for net in report.nets)
    tests = any("TEST" in net.phases and net.layers for net in report.nets)
    return ["TRAIN"] * trains + ["TEST"] * tests


def run_apart(trial: Trial) -> Outcome:
    """Runs a trial in a process of its own, within TIME_LIMIT. Returns its outcome, whatever happens to the process."""
    try:
        done = subprocess.run(
            own_command("--trial"),
            input=json.dumps(asdict(trial)),
            capture_output=True,
            text=True,
            errors="replace",  # a user's code may print any bytes
            timeout=TIME_LIMIT,
        )
    except subprocess.TimeoutExpired:
        return Outcome("time", f"not done in {TIME_LIMIT} s")
    if done.returncode == 0 and done.stdout:  # without output, a user's code has ended the process
        return Outcome(**json.loads(done.stdout.splitlines()[-1]))
    if done.returncode == -signal.SIGKILL:
        return Outcome("memory", "killed, probably because the machine was out of memory")
    name = signal.Signals(-done.returncode).name if done.returncode < 0 else f"exit status {done.returncode}"
    return Outcome("crash", f"{name}; {done.stderr.strip()[-500:]}")


def reason_of(message: str) -> str:
    """Returns the reason that an error is counted under."""
    for pattern, reason in _REASONS:
        found = re.search(pattern, message)
        if found:
            return reason.format(*found.groups())
    return "does not fit together"


def line_of(row: Row) -> str:
    """Returns a line for people."""
    head = f"{printable(row.file)}{f', {row.phase}' if row.phase else ''}: "
    if row.reason:
        return f"{head}{row.reason}: {row.message.strip().splitlines()[-1]}"
    outcome = row.outcome
    shown = (
        f"{printable(name)} {', '.join(f'{value:.4g}' for value in values)}" for name, values in outcome.outputs.items()
    )
    return (
        f"{head}runs, {outcome.seconds:.1f} s, {human(outcome.peak_bytes, 'B')}"
        f"{'' if outcome.batch else ', whole batch'}; {'; '.join(list(shown)[:3])}"
    )


def summary(rows: Iterable[Row]) -> str:
    """Returns lines that tell how many files come how far, and why others do not run, the most frequent reason
    first."""
    rows = list(rows)
    files = dict.fromkeys(row.file for row in rows)
    least = {file: min((row.stage for row in rows if row.file == file), key=_STAGES.index) for file in files}
    counts = [sum(_STAGES.index(stage) >= at for stage in least.values()) for at in range(1, len(_STAGES))]
    reached = ", ".join(f"{count} {word}" for count, word in zip(counts, ("read", "build", "run"), strict=True))
    reasons = Counter(reason for _, reason in {(row.file, row.reason) for row in rows if row.reason})
    lines = [f"{len(files)} files: {reached}", *(f"{count:5}  {reason}" for reason, count in reasons.most_common())]
    return "\n".join(lines)


_STAGES = ("", "reads", "builds", "runs")  # of a Row
