"""Fills the report of a test, `engine test --report`, with what its judges and detectors have found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.config.label_map import label_names
from engine.inference.classify import found_labels
from engine.inference.evaluator import DETECTORS, Evaluator
from engine.inference.judges import ClassJudge, Judge, Judges

if TYPE_CHECKING:
    from engine.config import NetConfig
    from engine.inference.evaluator import Outputs
    from engine.report.scorecard import Scorecard


def write_report(
    report: Scorecard,
    config: NetConfig,
    evaluator: Evaluator,
    values: Outputs,
    judges: Judges,
    found: Sequence[Judge],
) -> None:
    """Writes the report, on rank 0.

    Args:
        values: what Evaluator.run() has returned.
        found: what Judges.gather() has returned.
    """
    outputs = {name: value.tolist() for name, value in values.items()}
    report.add_figures(net=config.message.name, samples=judges.samples, outputs=outputs)
    kinds = [type(judge) for judge in found]
    for judge in found:
        stem = judge.name if kinds.count(type(judge)) > 1 else ""
        names = found_labels(config, judge.count)
        if isinstance(judge, ClassJudge):
            report.add_classes(judge.name, judge.found, judge.by_pixel, names, stem)
        else:
            report.add_labels(judge.name, judge.scores, judge.there, names, stem, judge.keys)
    for name, detections in evaluator.detections.items():
        stem = name if len(evaluator.detections) > 1 else ""
        count, mapped = max(detections.boxes, default=0) + 1, label_names(config)
        first = DETECTORS[evaluator.detectors[name].type].first  # labels.txt has no background
        names = [mapped.get(first + label, str(label)) for label in range(count)]
        names = names if mapped else found_labels(config, count)
        report.add_detections(name, detections, evaluator.ap_version, names, stem)
    if judges.results.any:
        report.add_results(judges.results.results)
    report.close()
