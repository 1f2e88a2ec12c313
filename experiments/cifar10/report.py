"""Tables and a plot of results.json: means over the seeds and 95% intervals of Student's t.

Where two arms are compared, their runs are paired by seed: both begin with the same weights and the same order of
pictures.

    python experiments/cifar10/report.py cifar10/results.json
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from arms import ARMS, COMPARISONS, Comparison

# Student's t, two-sided 95%, for 1, 2, ... degrees of freedom.
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


@dataclass(frozen=True)
class Estimate:
    """A mean and half the length of its 95% interval, which is infinite for one value."""

    mean: float
    half: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        count = len(values)
        if count < 2:
            return cls(values[0], math.inf, count)
        t = T95[count - 2] if count - 2 < len(T95) else 1.96
        return cls(statistics.fmean(values), t * statistics.stdev(values) / math.sqrt(count), count)

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + (f" ± {self.half:.2f}" if math.isfinite(self.half) else "")


Runs = Mapping[str, Mapping[int, dict]]  # by arm and seed


def by_arm(runs: Sequence[dict]) -> dict[str, dict[int, dict]]:
    found: dict[str, dict[int, dict]] = {}
    for run in runs:
        found.setdefault(run["arm"], {})[run["seed"]] = run
    return found


def outcome(run: Mapping) -> str:
    """Of one run, for people."""
    if "diverged" in run:
        return f"diverged ({run['diverged']})"
    members = f", members {', '.join(f'{each:.2f}' for each in run['members'])}" if "members" in run else ""
    return f"top-1 {run['top1']:.2f}%, top-5 {run['top5']:.2f}%{members}"


def accuracy(runs: Mapping[int, dict]) -> Estimate | None:
    """Of the runs that did not diverge."""
    values = [run["top1"] for run in runs.values() if "top1" in run]
    return Estimate.of(values) if values else None


def difference(a: Mapping[int, dict], b: Mapping[int, dict]) -> Estimate | None:
    """Of a over b, in points of top-1, seed by seed."""
    seeds = [seed for seed in sorted(a.keys() & b.keys()) if "top1" in a[seed] and "top1" in b[seed]]
    return Estimate.of([a[seed]["top1"] - b[seed]["top1"] for seed in seeds]) if seeds else None


def staleness(runs: Mapping[int, dict]) -> str:
    """What gradients were behind in updates, the mean over the runs and the most in any; "" of arms that wait.

    The mean of ranks that compute one gradient at a time is (ranks - 1) / ranks, whatever the bound: only the most
    tells how far the fast ones went ahead.
    """
    found = [run for run in runs.values() if "staleness" in run]
    if not found:
        return ""
    most = max(int(stale) for run in found for stale in run["staleness"])
    return f"{Estimate.of([run['mean_staleness'] for run in found])}, {most}"


def verdict(comparison: Comparison, runs: Runs) -> str:
    """What the runs say of a comparison's claim."""
    found = difference(runs.get(comparison.better, {}), runs.get(comparison.worse, {}))
    if found is None:
        return "it is not known yet"
    low, high = found.mean - found.half - comparison.points, found.mean + found.half - comparison.points
    says = "it holds" if low > 0 else "it does not hold" if high < 0 else "it cannot be told from chance"
    return f"{says} (difference {found} points, {found.count} seed{'s' if found.count > 1 else ''})"


def begun(runs: Runs) -> list[Comparison]:
    """The comparisons of which more is known than an arm that an earlier one shows, too."""
    found: list[Comparison] = []
    for comparison in COMPARISONS:
        shown = {arm for each in found for arm in each.arms}
        if any(arm in runs and arm not in shown for arm in comparison.arms):
            found.append(comparison)
    return found


def lines(content: Mapping) -> Iterator[str]:
    """The tables, as Markdown."""
    runs = by_arm(content["runs"])
    yield f"{content['net']}, {content['epochs']:g} epochs (twice as many where the last column says so)."
    for comparison in begun(runs):
        present = [arm for arm in comparison.arms if arm in runs]
        first = comparison.arms[0]
        yield from ("", f"### {comparison.title}", "")
        stale = any("staleness" in run for arm in present for run in runs[arm].values())
        last = " staleness: mean, most |" if stale else ""
        yield f"| | top-1, % | difference to the first | seeds | diverged | processor minutes, a run | epochs |{last}"
        yield "|---|---|---|---|---|---|---|" + ("---|" if stale else "")
        for arm in present:
            mine = runs[arm]
            against = difference(mine, runs.get(first, {})) if arm != first else None
            diverged = sum("diverged" in run for run in mine.values())
            last = f" {staleness(mine)} |" if stale else ""
            minutes = statistics.fmean(run["processor_seconds"] for run in mine.values()) / 60
            yield (
                f"| {ARMS[arm].title} | {accuracy(mine) or ''} | {against or ''} | {len(mine)} | {diverged or ''} "
                f"| {minutes:.1f} | {ARMS[arm].budget * content['epochs']:g} |{last}"
            )
        yield from _of_members(present, runs)
        if comparison.claim:
            yield from ("", f"The paper: {comparison.claim}. Here {verdict(comparison, runs)}.")
    hours = sum(run["processor_seconds"] for run in content["runs"]) / 3600
    yield from ("", f"{len(content['runs'])} runs, {hours:.1f} hours of processor time.")


def _of_members(arms: Sequence[str], runs: Runs) -> Iterator[str]:
    """The members of an ensemble, and the ensemble over its best one."""
    for arm in arms:
        found = [run for run in runs[arm].values() if "members" in run]
        if not found:
            continue
        columns = zip(*(run["members"] for run in found), strict=True)
        members = ", ".join(str(Estimate.of(column)) for column in columns)
        gain = Estimate.of([run["top1"] - max(run["members"]) for run in found])
        yield from ("", f"Its members: {members}. It is {gain} points above its best member.")


def plot(content: Mapping, path: Path) -> None:
    """A panel for each comparison: means with 95% intervals, and every run."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    runs = by_arm(content["runs"])
    shown = begun(runs)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "engine"}):
        figure = Figure(figsize=(9, 0.4 + sum(0.9 + 0.32 * len(each.arms) for each in shown)), layout="constrained")
        heights = [1 + 0.4 * len(comparison.arms) for comparison in shown]
        axes = figure.subplots(len(shown), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axis, comparison in zip(axes, shown, strict=True):
            arms = [arm for arm in comparison.arms if arm in runs and accuracy(runs[arm])]
            for row, arm in enumerate(arms):
                found = accuracy(runs[arm])
                assert found
                half = found.half if math.isfinite(found.half) else 0
                axis.errorbar(found.mean, row, xerr=half, fmt="o", color="C0", capsize=4)
                single = [run["top1"] for run in runs[arm].values() if "top1" in run]
                axis.plot(single, [row] * len(single), "|", color="0.5", markersize=9)
            axis.set_yticks(range(len(arms)), [ARMS[arm].title for arm in arms])
            axis.set_ylim(len(arms) - 0.5, -0.5)
            axis.set_title(comparison.title, fontsize="medium", loc="left")
            axis.grid(True, axis="x", alpha=0.3)
        axes[-1].set_xlabel("top-1 accuracy on the test set, %")
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def write(results: Path) -> None:
    """Prints the tables; writes them and the plot beside results.json."""
    content = json.loads(results.read_text())
    text = "\n".join(lines(content)) + "\n"
    print(text, end="")
    results.with_suffix(".md").write_text(text)
    if content["runs"]:
        plot(content, results.with_suffix(".svg"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="results.json")
    write(parser.parse_args().results)
