"""Writes what `engine check` has found, for people, for programs, and as curves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from engine.errors import ConfigError, ConfigErrors, printable, shape_text
from engine.examine.check_report import FileReport, NetReport
from engine.report.plot import Panel, write_panels
from engine.report.table import human, table


def to_text(report: FileReport) -> str:
    """Returns a report for people."""
    paragraphs = [f"{printable(report.file)}: {report.kind or 'unreadable'}"]
    if report.batch:
        paragraphs.append(f"global batch: {report.batch}")
    if report.outline:
        paragraphs += report.outline.lines()
    if report.schedule:
        rates = ", ".join(f"{rate:g} at {iteration}" for iteration, rate in report.schedule)
        paragraphs.append(f"learning rate: {rates}")
    if report.optimizer_bytes:
        paragraphs.append(_memory_text(report))
    paragraphs += ["\n" + _net_text(net) for net in report.nets]
    paragraphs += [f"note: {printable(note)}" for note in (*report.refused, *report.notes)]
    paragraphs += [f"absent code: {printable(line)}" for line in report.absent_code]
    paragraphs += [f"absent file: {printable(line)}" for line in report.absent_files]
    return "\n".join(paragraphs)


def _memory_text(report: FileReport) -> str:
    """Returns a line about the memory of a rank that trains."""
    used, own = report.nets[0].memory, report.optimizer_bytes
    if other := report.discriminator:  # its parameters are among those of nets[0]
        gradients, planned = (getattr(used, name) + getattr(other.memory, name) for name in ("gradients", "planned"))
        used = replace(used, gradients=gradients, planned=planned)
    total = used.parameters + used.gradients + own + used.planned + used.ring
    ring = f", {human(used.ring, 'B')} batches in use and ahead" if used.ring else ""
    share = f", 1/{report.ranks} of it (shard_updates)" if report.sharded else ""
    return (
        f"memory of each rank: {human(total, 'B')}: {human(used.parameters, 'B')} parameters, "
        f"{human(used.gradients, 'B')} their gradients, {human(own, 'B')} the optimizer's state{share}, "
        f"{human(used.planned, 'B')} blobs{ring}"
    )


def _net_text(net: NetReport) -> str:
    rows = [
        (
            layer.name,
            layer.type,
            ", ".join(shape_text(shape) for _, shape in layer.tops),
            f"{layer.parameters:,}" if layer.parameters else "",
            human(layer.flops) if layer.flops else "",
            human(layer.bytes, "B"),
        )
        for layer in net.layers
    ]
    total = ("total", f"{len(rows)} layers", "", f"{net.parameters:,}", human(net.flops), "")
    used = net.memory
    shared = (
        f", {human(used.planned, 'B')} when they share memory by the plan" if used.planned < used.activations else ""
    )
    lines = [
        f"net '{printable(net.name)}' of {printable(net.file)}, {' and '.join(dict.fromkeys(net.phases))}",
        table(("layer", "type", "output", "parameters", "FLOPs", "memory"), rows, "<<<>>>", total),
        f"forward, per sample: {human(net.flops / net.batch, 'FLOPs')}" if net.batch else "",
        f"memory: {human(used.parameters, 'B')} parameters, {human(used.gradients, 'B')} their gradients, "
        f"{human(used.activations, 'B')} blobs{shared}",
    ]
    return "\n".join(line for line in lines if line)


def to_json(report: FileReport) -> dict:
    """Returns a report for programs."""
    result = asdict(replace(report, outline=None))
    result["outline"] = report.outline.to_json() if report.outline else None
    for net, entry in zip(report.nets, result["nets"], strict=True):
        entry["parameters"], entry["flops"] = net.parameters, net.flops
        for layer in entry["layers"]:
            layer["tops"] = [{"name": name, "shape": list(shape)} for name, shape in layer["tops"]]
    return result


def draw_schedules(reports: Iterable[FileReport], path: str) -> None:
    """Draws the curves of all solvers into one picture. Raises ConfigError if there is no solver whose run is known,
    EngineError if the picture cannot be written."""
    drawn = [(report.file, report.outline) for report in reports if report.outline]
    if not drawn:
        raise ConfigError("nothing to draw: no solver whose run is known", path)
    panels: dict[str, Panel] = {}
    for file, outline in drawn:
        for panel in outline.panels(Path(file).name if len(drawn) > 1 else ""):
            panels.setdefault(panel.title, Panel(panel.title, [])).series.extend(panel.series)
    write_panels(path, ", ".join(Path(file).name for file, _ in drawn), list(panels.values()))


def all_errors(reports: Iterable[FileReport]) -> Iterator[str]:
    """Yields the errors of all files, each once: solvers share nets."""
    yield from dict.fromkeys(error for report in reports for error in report.errors)


def summary(reports: Sequence[FileReport]) -> str:
    """Returns a line that says how many files are fine, lack something, or have errors."""
    fine = sum(not (report.errors or report.lacks) for report in reports)
    code = sum(bool(report.absent_code or report.refused) and not report.errors for report in reports)
    files = sum(bool(report.absent_files) and not report.errors for report in reports)
    wrong = sum(bool(report.errors) for report in reports)
    return (
        f"{len(reports)} files: {fine} in order; without errors but lacking files {files}, user code {code}; "
        f"with errors {wrong}"
    )


def raise_errors(reports: list[FileReport]) -> None:
    """Raises ConfigErrors with the errors of all files, if there are any."""
    errors = [ConfigError(text) for text in all_errors(reports)]
    if errors:
        raise ConfigErrors(errors)
