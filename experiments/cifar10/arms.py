"""What is trained, and what is compared: the arms of the experiment as data.

Every arm of a comparison has the same net, the same data and the same number of epochs. Lengths are
shares of an arm's budget. No number here was chosen by looking at a test set: rates, decays and
shapes are those of the paper that engine follows (Codreanu, Podareanu, Saletore 2017, arXiv 1711.04291) and of He et
al. (2015), scaled to the length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

BATCH = 128  # of a processing step: BatchNorm's statistics are those of so many images whatever the global batch
BASE_RATE = 0.1  # for BATCH
WARMUP = 0.05  # of a run: the paper's 5 of 90 epochs
LONG_WARMUP = 0.1  # for the largest batches: the paper's 7 to 10 of 100
DECAY, HALF_DECAY = 0.0001, 0.00005


@dataclass(frozen=True)
class Stage:
    """One `engine train`, from the weights of the stage before.

    length: in shares of the arm's budget, as are the fields of `shares`, which count in epochs. settings: other fields
    of the solver. collapse: without augmentation, and the next stage does not go on from its weights; what it leaves
    is a member of the arm's ensemble.
    """

    length: float
    settings: Mapping[str, object] = field(default_factory=dict)
    shares: Mapping[str, float | tuple[float, ...]] = field(default_factory=dict)
    collapse: bool = False


@dataclass(frozen=True)
class Arm:
    """title: in tables. budget: of all stages together, in units of the experiment's epochs. ranks: that train it, each
    with its part of the batch."""

    title: str
    stages: tuple[Stage, ...]
    budget: float = 1
    ranks: int = 1


@dataclass(frozen=True)
class Comparison:
    """arms: the first is what the others are compared with. claim: what the paper says, of the arms (better, worse) by
    at least so many points of accuracy; a negative number allows the first to be worse by so much."""

    title: str
    arms: tuple[str, ...]
    claim: str = ""
    better: str = ""
    worse: str = ""
    points: float = 0.0


def one(
    title: str, batch: int = BATCH, warmup: float = WARMUP, steps: tuple[float, ...] = (), **settings: object
) -> Arm:
    """A run in one stage, by default down to 0 in a line. steps: where a multistep rate falls."""
    shares: dict[str, float | tuple[float, ...]] = {"warmup_epoch": warmup}
    if steps:
        shares["stepvalue_epoch"] = steps
    if batch > BATCH:
        settings = {"iter_size": batch // BATCH, **settings}
    return Arm(title, (Stage(1, settings, shares),))


def on_ranks(title: str, **comm: object) -> Arm:
    """Four ranks of 32 images each; their comm_param."""
    settings = {f"comm_param.{name}": value for name, value in comm.items()}
    return Arm(title, (Stage(1, settings, {"warmup_epoch": WARMUP}),), ranks=4)


def lars(title: str, batch: int, warmup: float = WARMUP) -> Arm:
    """You et al. (2017), with the constant and the rates of the arms without."""
    return one(title, batch, warmup, local_lr_auto=True)


def collapse(length: float, rate: float) -> Stage:
    """The end of a run: the rate falls from where it is with power 2, the usual decay, no augmentation."""
    settings = {"base_lr": rate, "power": 2, "weight_decay": DECAY}
    return Stage(length, settings, collapse=True)


def collapsed(title: str, budget: float, length: float = 0.075) -> Arm:
    """Half the decay, a line down to 0, of which the collapse takes the place of the last part."""
    line = {"lr_policy": "poly_cyc", "weight_decay": HALF_DECAY}
    first = Stage(1 - length, line, {"warmup_epoch": WARMUP, "lr_epoch": 1})
    return Arm(title, (first, collapse(length, BASE_RATE * length)), budget)


def semi_cyclic(title: str, budget: float, cycles: int = 5, length: float = 0.025) -> Arm:
    """The paper's figure 4, and from the end of each cycle a collapse of so much of the budget.

    A quarter of the run goes down in a line, an eighth with power 2 to 22% of the rate; then, cycle by cycle, the rate
    is tripled over a fifth and comes down, with power 2, to a quarter.
    """
    run = 1 - cycles * length  # without the collapses
    decay, fifth = {"weight_decay": HALF_DECAY, "lr_policy": "poly_cyc"}, run / 8 / 5
    rate = BASE_RATE * 0.75
    stages = [
        Stage(run / 4, {**decay, "power": 1}, {"warmup_epoch": WARMUP, "lr_epoch": run}),
        Stage(run / 8, {**decay, "base_lr": rate, "power": 2}, {"lr_epoch": run / 8 / (1 - (0.22 / 0.75) ** 0.5)}),
    ]
    rate = BASE_RATE * 0.22
    for _ in range(cycles):
        settings = {**decay, "base_lr": 3 * rate, "power": 2, "warmup_start_lr": rate, "policy_after_warmup": True}
        stages.append(Stage(5 * fifth, settings, {"warmup_epoch": fifth, "lr_epoch": 8 * fifth}))
        rate *= 3 / 4
        stages.append(collapse(length, rate))
    return Arm(title, tuple(stages), budget)


ARMS: dict[str, Arm] = {
    "linear": one("linear to 0"),
    "steps": one("three steps", steps=(1 / 3, 2 / 3, 8 / 9), lr_policy="multistep", gamma=0.1),  # 30, 60, 80 of 90
    "cosine": one("cosine", lr_policy="cosine"),
    "half": one("half the decay", weight_decay=HALF_DECAY),
    "collapse": collapsed("half the decay, collapse", 1),
    "512": one("512", 512),
    "2048": one("2048", 2048, LONG_WARMUP),
    "8192": one("8192", 8192, LONG_WARMUP),
    "collapse2": collapsed("one net: half the decay, collapse", 2),
    "ensemble": semi_cyclic("ensemble of five collapses", 2),
    "128 LARS": lars("128", BATCH),
    "512 LARS": lars("512", 512),
    "2048 LARS": lars("2048", 2048, LONG_WARMUP),
    "8192 LARS": lars("8192", 8192, LONG_WARMUP),
    "fp32": one("linear to 0, in fp32", precision="FP32"),
    "SYNC": on_ranks("SYNC"),
    "ASYNC 1": on_ranks("ASYNC, staleness at most 1", mode="ASYNC", max_staleness=1),
    "ASYNC 4": on_ranks("ASYNC, staleness at most 4", mode="ASYNC", max_staleness=4),
    "ASYNC 16": on_ranks("ASYNC, staleness at most 16", mode="ASYNC", max_staleness=16),
    "ASYNC 16 lr": on_ranks(
        "ASYNC, at most 16, rates divided by staleness", mode="ASYNC", max_staleness=16, staleness_lr=True
    ),
    "LOCAL": on_ranks("LOCAL, an average every 8 iterations", mode="LOCAL", sync_every=8),
}

# For --quick: a comparison of single nets, and an ensemble.
QUICK_ARMS = {
    "linear": ARMS["linear"],
    "steps": ARMS["steps"],
    "ensemble": semi_cyclic("ensemble of two collapses", 2, cycles=2),
}

# In the order in which they are run.
COMPARISONS = (
    Comparison("Decay of the rate", ("linear", "steps", "cosine"), "linear is better than steps", "linear", "steps"),
    Comparison(
        "Weight decay",
        ("linear", "half", "collapse"),
        "half the decay and a collapse are better than a constant decay",
        "collapse",
        "linear",
    ),
    Comparison(
        "Global batch",
        ("linear", "512", "2048", "8192"),
        "8192 is within a point of 128",
        "8192",
        "linear",
        -1.0,
    ),
    Comparison(
        "One net, or a collapsed ensemble of the same budget",
        ("collapse2", "ensemble"),
        "the ensemble is better than the best single net by half a point",
        "ensemble",
        "collapse2",
        0.5,
    ),
    Comparison("Global batch, with LARS", ("128 LARS", "512 LARS", "2048 LARS", "8192 LARS")),
    Comparison("Precision", ("fp32", "linear")),
    Comparison(
        "Four ranks that wait for each other, or not",
        ("SYNC", "ASYNC 1", "ASYNC 4", "ASYNC 16", "ASYNC 16 lr", "LOCAL"),
    ),
)
