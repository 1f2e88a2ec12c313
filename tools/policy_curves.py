"""Draws docs/policies.svg, the curve of every learning-rate policy: `python tools/policy_curves.py [FILE]`.

The curves are those of engine's own schedules for the settings of EXAMPLES, which docs/solver.md lists.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from google.protobuf import text_format  # noqa: E402

from engine import proto  # noqa: E402
from engine.solver.schedules import LearningRate  # noqa: E402
from engine.solver.state import PlateauState  # noqa: E402

TARGET = ROOT / "docs/policies.svg"
ITERATIONS = 1000

# Policy -> fields of its solver. All have max_iter: 1000 besides and, except for multifixed, base_lr: 0.1.
EXAMPLES = {
    "fixed": "",
    "step": "gamma: 0.5  stepsize: 250",
    "multistep": "gamma: 0.1  stepvalue: 500  stepvalue: 800",
    "multifixed": "stagelr: 0.1  stageiter: 300  stagelr: 0.04  stageiter: 700  stagelr: 0.01  stageiter: 1000",
    "exp": "gamma: 0.997",
    "inv": "gamma: 0.01  power: 0.75",
    "poly": "power: 2",
    "poly_cyc": "power: 2  lr_iter: 1500",
    "cosine": "",
    "sgdr": "cycle_iter: 143  cycle_mult: 2",
    "sigmoid": "gamma: 0.01  stepsize: 500",
    "plateau": "gamma: 0.3  plateau_winsize: 100  plateau_winsize: 100",
}
_WARM_UP = "power: 1  warmup_iter: 200  warmup_start_lr: 0.01"
WARM_UPS = {"poly with a warm-up": _WARM_UP, "poly after a warm-up": f"{_WARM_UP}  policy_after_warmup: true"}


def loss(iteration: int) -> float:
    """Returns the smoothed loss that plateau sees: it falls until iteration 300, stays, and falls again from 600 on."""
    falling = min(iteration, 300) + max(0, iteration - 600)
    return 1 - falling / ITERATIONS


def solver(policy: str, fields: str) -> proto.SolverParameter:
    """Returns the SolverParameter of an example."""
    param = text_format.Parse(fields, proto.SolverParameter(lr_policy=policy, max_iter=ITERATIONS))
    if policy != "multifixed":
        param.base_lr = 0.1
    return param


def curve(policy: str, fields: str) -> list[float]:
    """Returns the rate of each iteration."""
    rate, seen = LearningRate(solver(policy, fields)), PlateauState()
    return [rate(iteration, loss(iteration), seen) for iteration in range(ITERATIONS)]


def draw(path: Path) -> None:
    """Draws one panel for each policy, and two for the warm-up. path: the file to write."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "engine", "svg.fonttype": "none", "font.size": 8})
    from matplotlib import pyplot

    panels = [(name, name, fields) for name, fields in EXAMPLES.items()]
    panels += [(title, "poly", fields) for title, fields in WARM_UPS.items()]
    figure, axes = pyplot.subplots(5, 3, figsize=(9, 10), sharex=True, sharey=True, layout="constrained")
    for axis, (title, policy, fields) in zip(axes.flat, panels, strict=False):
        axis.plot(curve(policy, fields), color="tab:blue")
        axis.set_title(title, fontweight="bold")
        axis.grid(color="0.9")
        axis.tick_params(labelbottom=True)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for axis in axes[:, 0]:
        axis.set_ylabel("lr")
    figure.supxlabel("iteration")
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET)
