"""`engine test --report DIR`: writes what a test has found as JSON, tables in CSV, and pictures."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import EngineError
from engine.files import atomic_write, check_writable, reason
from engine.report.json_text import json_text
from engine.report.log import log, warn
from engine.report.plot import write_picture
from engine.report.scores import MOST_CLASSES, ByClass, Confusion, Roc, mean, roc

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from engine.report.average_precision import Detections

MOST_NUMBERS = 20  # classes, up to which the counts of a matrix are written into its picture
MOST_TICKS = 60  # classes, up to which an axis names them
MOST_LINES = 12  # curves, up to which a legend names them
LONGEST = 24  # characters of a name in a picture
FILES = (
    *("classes.csv", "classes.png", "confusion.csv", "confusion.png"),
    *("labels.csv", "roc.csv", "roc.png", "scores.csv"),
    *("detections.csv", "precision_recall.csv", "precision_recall.png", "coco_results.json", "report.json"),
)
Names = Sequence[str]  # of classes or labels; if it is empty, their numbers are their names


class Scorecard:
    """Writes the files of one folder. Where several blobs have results of one kind, the names of their files begin with
    a `stem`, the blob's name; where there is only one, `stem` is ""."""

    def __init__(self, folder: str):
        """Makes the folder. Raises EngineError if it cannot be made or written to: before the test, not after it."""
        self._folder = Path(folder)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EngineError(f"--report: cannot be made: {reason(error)}", folder) from None
        check_writable(self._folder / "report.json")
        self._found: dict[str, Any] = {}
        self._draws = True  # until matplotlib turns out to be missing
        self._stems: dict[str, str] = {}  # stem -> the beginning of its files' names
        self.files: list[str] = []

    def older(self, blobs: Iterable[str]) -> list[Path]:
        """Returns the files of the folder that may be of an older report on these blobs, or have the names of one."""
        stems, names = ("|".join(map(re.escape, each)) for each in (map(_plain, blobs), FILES))
        ours = re.compile(rf"((?:{stems})(_\d+)?_)?(?:{names})")
        return [each for each in self._folder.glob("*") if ours.fullmatch(each.name)]

    def add_figures(self, **figures: object) -> None:
        """Adds figures of the whole test to report.json."""
        self._found |= figures

    def add_classes(self, blob: str, found: Confusion, by_pixel: bool, names: Names, stem: str = "") -> None:
        """Writes what samples (or pixels) of each class were taken for: tables, pictures, and an entry of
        report.json."""
        by_class, matrix, kind = ByClass.of(found), found.matrix, "pixels" if by_pixel else "samples"
        labels = list(names) or [str(number) for number in range(len(found.samples))]
        header = ["class", "name", kind, "accuracy", "precision", "iou"]
        rows = zip(range(len(labels)), labels, found.samples, by_class.recall, by_class.precision, by_class.iou)
        self._table(self._name(stem, "classes.csv"), header, rows)
        total = found.samples.sum()
        if found.unknown:
            warn(f"{blob}: {found.unknown} of {total} {kind} have scores that are NaN: they count as wrong")
        self._found.setdefault("classes", {})[blob] = {
            "by_pixel": by_pixel,
            "counted": int(total),
            "nan": found.unknown,
            "accuracy": _number(found.right.sum() / total if total else np.nan),
            "mean_accuracy": _number(mean(by_class.recall)),
            "mean_iou": _number(mean(by_class.iou)),
            "names": labels,
            **{key: _numbers(getattr(by_class, key)) for key in ("recall", "precision", "iou")},
            "confusion": None if matrix is None else matrix.tolist(),
        }
        if matrix is None:
            log(f"{blob}: no confusion matrix of {len(labels)} classes, which are more than {MOST_CLASSES}")
        else:
            self._table(
                self._name(stem, "confusion.csv"),
                ["label", *labels],
                ([name, *row] for name, row in zip(labels, matrix)),
            )
            side = float(np.clip(0.42 * len(labels) + 2.5, 5, 16))
            self._picture(
                self._name(stem, "confusion.png"),
                (side + 1, side),
                lambda figure: draw_confusion(figure, matrix, labels),
            )
        bars = {"iou": by_class.iou} if by_pixel else {"accuracy": by_class.recall}
        height = float(np.clip(0.24 * len(labels) + 1.2, 3, 60))
        if len(labels) <= 200:
            self._picture(self._name(stem, "classes.png"), (7, height), lambda figure: draw_bars(figure, bars, labels))

    def add_labels(
        self, blob: str, scores: np.ndarray, there: np.ndarray, names: Names, stem: str, keys: Sequence[str]
    ) -> None:
        """Writes the results of several labels for each sample: tables, a picture of the ROC, an entry of report.json.

        Args:
            scores: (samples, labels).
            there: (samples, labels): 1 where the sample has the label, 0 where it has not, -1 where it does not count.
            keys: the names of the samples.
        """
        labels = list(names) or [str(number) for number in range(scores.shape[1])]
        curves = [roc(scores[there[:, i] >= 0, i], there[there[:, i] >= 0, i] > 0) for i in range(len(labels))]
        if unknown := int(np.isnan(scores[there >= 0]).sum()):
            warn(f"{blob}: {unknown} scores are NaN: their labels have no AUROC")
        areas = np.array([curve.area for curve in curves])
        positive, counted = (there == 1).sum(0), (there >= 0).sum(0)
        header = ["label", "name", "samples", "positive", "auroc"]
        self._table(self._name(stem, "labels.csv"), header, zip(range(len(labels)), labels, counted, positive, areas))
        points = (
            (number, name, threshold, wrong, right)
            for number, (name, curve) in enumerate(zip(labels, curves))
            for threshold, wrong, right in zip(curve.thresholds, curve.false_rates, curve.true_rates)
        )
        header = ["label", "name", "threshold", "false positive rate", "true positive rate"]
        self._table(self._name(stem, "roc.csv"), header, points)
        header = ["sample", *labels, *(f"{name} score" for name in labels)]
        known = ([int(y) if y >= 0 else "" for y in row] for row in there)
        rows = ([key, *row, *found] for key, row, found in zip(keys, known, scores))
        self._table(self._name(stem, "scores.csv"), header, rows)
        self._found.setdefault("labels", {})[blob] = {
            "mean_auroc": _number(mean(areas)),
            "names": labels,
            "samples": counted.tolist(),
            "positive": positive.tolist(),
            "auroc": _numbers(areas),
        }
        self._picture(self._name(stem, "roc.png"), (7.5, 6.5), lambda figure: draw_roc(figure, curves, labels))

    def add_detections(self, blob: str, found: Detections, version: str, names: Names, stem: str = "") -> None:
        """Writes the average precision of each label: tables, a picture, an entry of report.json. version: a key of
        AP_VERSIONS."""
        curves, precisions = found.curves(), found.average_precisions(version)
        labels = {label: names[label] if label < len(names) else str(label) for label in curves}
        rows = ((label, labels[label], int(found.boxes[label]), precisions[label]) for label in curves)
        self._table(self._name(stem, "detections.csv"), ["label", "name", "boxes", "average precision"], rows)
        points = (
            (label, labels[label], *point)
            for label, (precision, recall) in curves.items()
            for point in zip(recall, precision)
        )
        self._table(self._name(stem, "precision_recall.csv"), ["label", "name", "recall", "precision"], points)
        self._found.setdefault("detections", {})[blob] = {
            "ap_version": version,
            "map": found.mean(version),
            "average_precision": {labels[label]: value for label, value in precisions.items()},
        }
        lines = {f"{labels[label]}, {precisions[label]:.3f}": curves[label] for label in curves}
        draw = lambda figure: draw_precisions(figure, lines)  # noqa: E731
        self._picture(self._name(stem, "precision_recall.png"), (7.5, 6.5), draw)

    def add_results(self, results: Sequence[Mapping[str, object]]) -> None:
        """Writes the boxes of a detector as pycocotools reads them."""
        with self._file("coco_results.json") as file:
            file.write(json_text(results, indent=None).encode() + b"\n")

    def close(self) -> None:
        """Writes report.json, the last file, and logs the names of all files."""
        with self._file("report.json") as file:
            file.write(json_text(self._found).encode() + b"\n")
        log(f"Report in {self._folder}: {', '.join(self.files)}")

    def _name(self, stem: str, name: str) -> str:
        """Returns the name of a file. A number tells two stems apart that would be the same in names of files."""
        if not stem:
            return name
        if stem not in self._stems:
            plain = found = _plain(stem)
            number = 1
            while found in self._stems.values():
                number += 1
                found = f"{plain}_{number}"
            self._stems[stem] = found
        return f"{self._stems[stem]}_{name}"

    def _file(self, name: str):
        self.files.append(name)
        return atomic_write(self._folder / name)

    def _table(self, name: str, header: Sequence[str], rows) -> None:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(header)
        writer.writerows([_cell(value) for value in row] for row in rows)
        with self._file(name) as file:
            file.write(text.getvalue().encode("utf-8", "surrogateescape"))

    def _picture(self, name: str, size: tuple[float, float], draw: Callable[[Figure], None]) -> None:
        if not self._draws:
            return
        try:
            write_picture(os.fspath(self._folder / name), size, draw)
        except EngineError as error:
            warn(f"Pictures are left out of the report: {error}")
            self._draws = False
        else:
            self.files.append(name)


def _plain(blob: str) -> str:
    """Returns the name of a blob as it stands in names of files."""
    return re.sub("[^A-Za-z0-9-]+", "_", blob)


def _cell(value: object) -> object:
    """Returns a value for CSV: every digit of a number, "" for NaN."""
    if isinstance(value, float | np.floating):
        return "" if np.isnan(value) else repr(float(value))
    return value


def _number(value: float) -> float | None:
    """Returns a number for JSON, which has no NaN."""
    return None if np.isnan(value) else float(value)


def _numbers(values: np.ndarray) -> list[float | None]:
    return [_number(value) for value in values]


# Pictures


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"


def draw_confusion(figure: Figure, counts: np.ndarray, labels: Names) -> None:
    """Draws a confusion matrix. Colours are fractions of a row, the samples of a class; numbers are counts."""
    axis = figure.subplots()
    whole = np.maximum(counts.sum(1, keepdims=True), 1)
    image = axis.imshow(counts / whole, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, ax=axis, shrink=0.8, label="share of the class")
    axis.set_xlabel("taken for")
    axis.set_ylabel("class")
    if len(labels) <= MOST_TICKS:
        ticks, names = range(len(labels)), [_short(name) for name in labels]
        size = "medium" if len(labels) <= MOST_NUMBERS else "x-small"
        upright = max(map(len, names)) > 3
        axis.set_xticks(ticks, names, rotation=90 if upright else 0, fontsize=size)
        axis.set_yticks(ticks, names, fontsize=size)
    if len(labels) <= MOST_NUMBERS:
        for row, column in np.argwhere(counts):
            dark = counts[row, column] > whole[row] / 2
            text, colour = f"{counts[row, column]}", "white" if dark else "black"
            axis.text(column, row, text, ha="center", va="center", color=colour, fontsize=_count_size(counts))


def _count_size(counts: np.ndarray) -> float:
    """Returns the font size in points in which the longest count fits into its square of 0.42 inches."""
    return float(np.clip(36 / len(str(counts.max())), 4, 9))


def draw_bars(figure: Figure, values: Mapping[str, np.ndarray], labels: Names) -> None:
    """Draws a bar for each class, and the mean as a line. values: one array, by the name of what it measures."""
    axis = figure.subplots()
    ((title, bars),) = values.items()
    axis.barh(range(len(labels)), np.nan_to_num(bars), color="C0")
    if not np.isnan(mean(bars)):
        axis.axvline(mean(bars), color="C1", linestyle="--")
        axis.set_title(f"mean {mean(bars):.4g}", fontsize="medium")
    size = "medium" if len(labels) <= MOST_NUMBERS else "x-small"
    axis.set_yticks(range(len(labels)), [_short(name) for name in labels], fontsize=size)
    axis.set_ylim(len(labels) - 0.5, -0.5)
    axis.set_xlim(0, 1)
    axis.set_xlabel(f"{title} by class")


def _legend(axis: Axes, count: int) -> None:
    if count <= MOST_LINES:
        axis.legend(loc="best", fontsize="small")


def _square(figure: Figure, x: str, y: str) -> Axes:
    axis = figure.subplots()
    axis.set_xlim(-0.01, 1.01)
    axis.set_ylim(-0.01, 1.01)
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.grid(True, alpha=0.3)
    return axis


def draw_roc(figure: Figure, curves: Sequence[Roc], labels: Names) -> None:
    """Draws ROC curves. The highest scores are at the left; the dotted line is what guessing would give."""
    axis = _square(figure, "false positive rate", "true positive rate")
    known = [(curve, name) for curve, name in zip(curves, labels) if not np.isnan(curve.area)]
    width = 0.8 if len(known) > MOST_LINES else 1.5
    for curve, name in known:
        axis.plot(curve.false_rates, curve.true_rates, label=f"{_short(name)}, {curve.area:.4f}", linewidth=width)
    axis.plot([0, 1], [0, 1], color="grey", linestyle=":")
    area = mean(np.array([curve.area for curve in curves]))
    axis.set_title(f"ROC of {len(known)} labels, mean area {area:.4f}")
    if known:
        _legend(axis, len(known))


def draw_precisions(figure: Figure, lines: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """Draws precision over recall. lines: by the label's name, (precision, recall)."""
    axis = _square(figure, "recall", "precision")
    for name, (precision, recall) in lines.items():
        axis.plot(recall, precision, label=name, marker="." if len(recall) < 30 else None)
    if lines:
        _legend(axis, len(lines))
