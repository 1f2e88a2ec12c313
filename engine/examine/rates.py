"""Makes a learning-rate range test: a short training in which the rate grows from step to step until the loss
diverges."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from engine import proto
from engine.data.feeder import Feeder
from engine.errors import EngineError, NumericalError
from engine.files import atomic_write
from engine.report.log import log, warn
from engine.report.observer import Observer, StepRecord
from engine.report.plot import write_picture
from engine.solver.modes import require_sync
from engine.solver.resolve import scale_of, twins
from engine.solver.signals import Signals
from engine.solver.solver import Solver
from engine.solver.validate import leave_tests_out

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from engine.comm.world import World
    from engine.config import SolverConfig
    from engine.solver.optimizer import Optimizer

MEMORY = 0.9  # decay of the moving average that smooths the loss
DIVERGED = 4.0  # a smoothed loss of so many times the lowest one counts as diverged
CLEARLY = 3.0  # the loss must fall by so many standard deviations, or the test cannot tell
FEWEST = 5  # rates that a straight line is fitted to
# Fields that a range test does without: those about the length of a run, its rates, and what it writes.
LEFT_OUT = (
    *("warmup_iter", "warmup_start_lr", "warmup_policy", "policy_after_warmup", "lr_scaling", "min_lr", "lr_iter"),
    *("stepsize", "stepvalue", "stagelr", "stageiter", "plateau_winsize", "cycle_iter", "cycle_mult", "power"),
    *("rampup_interval", "rampup_lr", "batch_growth", "momentum_correction"),
    *("weight_decay_schedule", "weight_decay_policy"),
    *("snapshot", "snapshot_prefix", "snapshot_keep", "test_initialization", "display", "average_loss", "ema"),
)


@dataclass(frozen=True)
class Rates:
    """What a range test has found."""

    rates: list[float]
    losses: list[float]  # at each rate, the mean over the ranks
    smoothed: list[float]  # see smooth()
    diverged: bool
    asked: int  # number of rates that the test was to try
    scale: float = 1.0  # what the solver's lr_scaling multiplies base_lr by in these global batches
    cap: float | None = None  # the largest rate that lr_scaling allows; None: it has no limit

    @property
    def suggestion(self) -> float | None:
        """The base_lr which lr_scaling turns into the steepest rate; None if there is none."""
        return None if self.steepest is None else self.steepest / self.scale

    @property
    def steepest(self) -> float | None:
        """The rate around which the smoothed loss falls fastest over the logarithm of the rate; None if it never falls,
        or there are too few rates to tell.

        Straight lines are fitted to each run of rates that is a quarter of the test, up to where the loss is lowest; it
        is the middle of the steepest one."""
        end = self.falling
        width = min(end, max(FEWEST, self.asked // 4))
        if width < FEWEST:
            return None
        logs = np.log(self.rates[:end])
        lines = [
            (float(np.polyfit(logs[at : at + width], self.smoothed[at : at + width], 1)[0]), at)
            for at in range(end - width + 1)
        ]
        slope, at = min(lines)
        return float(np.exp(logs[at : at + width].mean())) if slope < 0 else None

    @property
    def falling(self) -> int:
        """The number of rates up to and with the one at which the smoothed loss is lowest."""
        return int(np.argmin(self.smoothed)) + 1 if self.smoothed else 0

    @property
    def noise(self) -> tuple[float, float]:
        """How much the loss varies from batch to batch (a standard deviation), and by how much it falls in all, from
        the mean of the first tenth of the test to the lowest smoothed loss."""
        end = self.falling
        spread = float(np.std(np.subtract(self.losses[:end], self.smoothed[:end])))
        return spread, float(np.mean(self.losses[: max(1, self.asked // 10)])) - self.smoothed[end - 1]

    @property
    def lowest(self) -> float:
        """The rate at which the smoothed loss is lowest."""
        return self.rates[self.falling - 1]


class _Solver(Solver):
    """A Solver that goes on when a loss is not finite. find_rates() sees that in the mean of all ranks, so that all
    stop together."""

    def _require_finite(self, loss: float, optimizer: Optimizer) -> None:
        pass

    def _check_weights(self) -> None:
        """Collective. Raises NumericalError on all ranks if the weights of one are not finite."""
        mine: NumericalError | None = None
        try:
            super()._check_weights()
        except NumericalError as error:
            mine = error
        failed = np.array([mine is not None], np.int64)
        self.world.allreduce(failed)
        if failed[0]:
            raise mine or NumericalError("the weights of another rank are not finite")


class _Losses(Observer):
    """Keeps the loss and the rate of every iteration."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.rates: list[float] = []

    def wants_figures(self, iteration: int) -> bool:
        return True

    def step(self, record: StepRecord) -> None:
        assert record.figures
        self.losses.append(record.figures.loss)
        self.rates.append(record.rate)


def find_rates(
    config: SolverConfig,
    world: World,
    weights: Sequence[str],
    lowest: float,
    highest: float,
    iterations: int,
    make_feeder: Callable[..., Feeder] = Feeder,
) -> Rates:
    """Collective. Trains from the solver's beginning, or from `weights`, and returns the losses. Saves nothing. Raises
    what training raises, except NumericalError: a loss that diverges ends the test.

    Args:
        weights: files of weights to begin from.
        lowest, highest: the first rate and the last; each is the one before times the same factor.
        iterations: number of rates.
        make_feeder: makes what feeds the nets, as Feeder does.
    """
    require_sync(config, "has no one loss: ranks would see the loss diverge at different steps")
    watch = _Losses()
    param = _range_test(config, lowest, highest, iterations)
    solver = _Solver(param, world, observers=[watch], signals=Signals(), make_feeder=make_feeder)
    if weights:
        solver.load_weights(list(weights))
    solver.replica.share()
    solver.feeder.start()
    smoothed: list[float] = []
    diverged = False
    try:
        for iteration in range(iterations):
            try:
                solver.run(iteration + 1)
            except NumericalError:  # the weights are not finite; it is raised on all ranks
                diverged = True
                break
            smoothed = smooth(watch.losses)
            if not math.isfinite(smoothed[-1]) or smoothed[-1] > DIVERGED * max(min(smoothed), 1e-6):
                diverged = True
                break
    finally:
        solver.feeder.close()
        solver.observers.close()
    solver.close()
    finite = [math.isfinite(loss) for loss in watch.losses]
    count = finite.index(False) if False in finite else len(finite)
    found = watch.rates[:count], watch.losses[:count], smooth(watch.losses[:count])
    return Rates(*found, diverged, iterations, *scaling_of(config.message, solver.global_batch))


def smooth(losses: Sequence[float]) -> list[float]:
    """Returns the exponential moving average of losses, divided by the sum of its coefficients: it begins at the first
    loss, not at 0."""
    found, mean = [], 0.0
    for number, loss in enumerate(losses, start=1):
        mean = MEMORY * mean + (1 - MEMORY) * loss
        found.append(mean / (1 - MEMORY**number))
    return found


def scaling_of(param: proto.SolverParameter, batch: int) -> tuple[float, float | None]:
    """Returns (scale, cap) of Rates, for a solver with global batches of so many samples."""
    scaling = param.lr_scaling
    if not param.HasField("lr_scaling"):
        return 1.0, None
    return scale_of(scaling, batch), scaling.cap if scaling.HasField("cap") else None


def _range_test(config: SolverConfig, lowest: float, highest: float, iterations: int) -> SolverConfig:
    """Returns the solver with an exponential policy, without tests and files."""
    param = proto.SolverParameter()
    param.CopyFrom(config.message)
    for field in LEFT_OUT:
        param.ClearField(field)
    if param.momentum_policy == "poly":  # it runs over max_iter, as weight_decay_policy does
        param.ClearField("momentum_policy")
    leave_tests_out(param)
    for message, _, epochs, _ in twins(param):
        if message is param:
            param.ClearField(epochs)  # pyright: ignore[reportArgumentType]
    param.lr_policy, param.base_lr, param.max_iter = "exp", lowest, iterations
    param.gamma = (highest / lowest) ** (1 / max(1, iterations - 1))
    param.snapshot_after_train = False
    return replace(config, message=param)


# What it prints


def describe(found: Rates) -> str:
    """Returns the suggestion and what it comes from, or why there is none."""
    if not found.rates:
        return "The loss is not finite at the first rate: begin lower, with --from"
    tried = len(found.rates)
    if 1 < found.falling < FEWEST and (found.diverged or tried < 4 * found.falling):  # of many, it would be noise
        return (
            f"The loss falls up to {found.lowest:.3g}, which is for {found.falling} of {tried} rates only: begin "
            "lower (--from), or try more --iterations"
        )
    if found.steepest is None or found.suggestion is None:
        return f"The loss does not fall between {found.rates[0]:.3g} and {found.rates[-1]:.3g}"
    end = f"diverges above {found.rates[-1]:.3g}" if found.diverged else f"has not diverged by {found.rates[-1]:.3g}"
    spread, fall = found.noise
    doubt = (
        f"\nThe loss varies by {spread:.2g} from batch to batch and falls by {fall:.2g} in all, which is too little to "
        "tell: try more --iterations, or a larger batch (iter_size)"
    )
    return (
        f"The loss falls fastest at {found.steepest:.3g}, is least at {found.lowest:.3g}, and {end}\n"
        f"Suggestion: base_lr: {found.suggestion:.2g}  # at most {found.lowest / found.scale / 3:.2g}, with a warm-up"
        + _scaling(found)
        + (doubt if fall < CLEARLY * spread else "")
    )


def _scaling(found: Rates) -> str:
    """Returns a note on what lr_scaling makes of a base_lr; "" if nothing."""
    if found.scale == 1:
        return ""
    cut = found.cap is not None and found.steepest is not None and found.cap < found.steepest
    return f"; lr_scaling makes it {found.scale:.3g} times as much" + (f", {found.cap:g} at most (cap)" if cut else "")


def table_of(path: str) -> str:
    """Returns the name of a curve's table: train.png.csv, for there may be a train.csv beside train.png."""
    return f"{path}.csv"


def write(found: Rates, path: str, title: str) -> None:
    """Writes the curve, and its table beside it. Warns if the curve cannot be drawn, as without matplotlib. Raises
    EngineError if the table cannot be written."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["rate", "loss", "smoothed loss"])
    rows.writerows(map(repr, row) for row in zip(found.rates, found.losses, found.smoothed))
    table = table_of(path)
    with atomic_write(table) as file:
        file.write(text.getvalue().encode())
    try:
        write_picture(path, (8, 4.8), lambda figure: _draw(figure, found, title))
    except EngineError as error:
        warn(f"The curve is left out, its table is in {table}: {error}")
    else:
        log(f"Curve in {path}, its table in {table}")


def _draw(figure: Figure, found: Rates, title: str) -> None:
    axis = figure.subplots()
    axis.plot(found.rates, found.losses, color="C0", alpha=0.3, linewidth=1, label="loss")
    axis.plot(found.rates, found.smoothed, color="C0", linewidth=1.6, label="smoothed")
    if found.steepest is not None:
        axis.axvline(found.steepest, color="C2", linestyle="--", label=f"falls fastest at {found.steepest:.3g}")
        axis.axvline(found.lowest, color="C1", linestyle=":", label=f"least at {found.lowest:.3g}")
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(lambda rate, _: f"{rate:g}")
    if found.smoothed:  # leave out the peak at which the loss diverges
        low, first = min(found.smoothed), found.smoothed[0]
        axis.set_ylim(low - 0.1 * (first - low) - 1e-3, first + 0.6 * (first - low) + 1e-3)
    axis.set_xlabel("learning rate")
    axis.set_ylabel("train loss")
    axis.set_title(title)
    axis.grid(True, alpha=0.3)
    axis.legend(loc="best", fontsize="small")
