"""One step of one net on synthetic data: what `engine check --run` starts in a separate process."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial

import numpy as np

from engine import proto
from engine.comm.world import World
from engine.config import SolverConfig, add_state, read_net, read_solver
from engine.config.solver_nets import solver_of_net
from engine.data.feeder import Feeder
from engine.data.source_shapes import Supposition
from engine.errors import ConfigError, EngineError, NumericalError
from engine.examine.synthetic import SyntheticFeeder
from engine.host.memory import available_memory, limit_data
from engine.inference.evaluator import Evaluator
from engine.layers.python import allow_modules
from engine.net import Net
from engine.solver.adversarial import solver_of
from engine.solver.validate import leave_tests_out

BATCH = 2  # samples; one would leave BatchNorm nothing to average over
_MEMORY_SHARE = 0.8  # of what is free when the trial begins


@dataclass(frozen=True)
class Trial:
    """file: a solver (phase TRAIN), or a net in phase TRAIN or TEST. python_layers: their modules may be imported.
    picture, labels: of a Supposition."""

    file: str
    kind: str
    phase: str
    level: int | None = None
    stages: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    python_layers: bool = False
    picture: Sequence[int] | None = None
    labels: str = "number"


@dataclass
class Outcome:
    """reason: "" for a trial that ran, else in a word why not, and message tells more."""

    reason: str = ""
    message: str = ""
    seconds: float = 0.0
    batch: int = 0  # 0: the net's own, because the net does not build with BATCH
    peak_bytes: int = 0
    outputs: dict[str, list[float]] = field(default_factory=dict)  # the first numbers of each


def run(trial: Trial) -> Outcome:
    """Takes the step. What goes wrong is in the outcome."""
    begin = time.perf_counter()
    outcome = Outcome()
    try:
        step = _train if trial.phase == "TRAIN" else _test
        suppose = Supposition(tuple(trial.picture) if trial.picture else None, trial.labels)
        for outcome.batch in (BATCH, 0):
            try:
                outputs = step(trial, partial(SyntheticFeeder, batch_size=outcome.batch, suppose=suppose))
                break
            except ConfigError:  # some nets reshape by their batch size
                if not outcome.batch:
                    raise
        outcome.outputs = {name: np.ravel(value)[:4].tolist() for name, value in outputs.items()}
        for name, value in outputs.items():
            if not np.isfinite(value).all():
                raise NumericalError(f"output {name} is not finite")
    except NumericalError as error:
        outcome.reason, outcome.message = "not finite", str(error)
    except EngineError as error:
        outcome.reason, outcome.message = "refused", str(error)
    except MemoryError:
        outcome.reason, outcome.message = "memory", "needs more memory than there is"
    except Exception:
        outcome.reason, outcome.message = "defect", traceback.format_exc()
    outcome.seconds = time.perf_counter() - begin
    outcome.peak_bytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return outcome


def _train(trial: Trial, make_feeder: Callable[..., Feeder]) -> dict[str, np.ndarray]:
    """One iteration of the solver; of a plain SGD for a net."""
    if trial.kind == "solver":
        config = read_solver(trial.file, trial.overrides)
        add_state(config.message.train_state, trial.level, trial.stages)
    else:
        net = read_net(trial.file, trial.overrides)
        add_state(net.message.state, trial.level, trial.stages)
        config = solver_of_net(net, 'base_lr: 1e-4 lr_policy: "fixed" momentum: 0.9')
    _one_iteration(config)
    solver = solver_of(config, World(), make_feeder=make_feeder)
    try:
        solver.solve()
        if not np.isfinite(solver.optimizer.weights).all():
            raise NumericalError("the weights are not finite after the update")
        return solver.net.outputs()
    finally:
        solver.close()


def _one_iteration(config: SolverConfig) -> None:
    """On one rank, without tests and without files."""
    param = config.message
    param.comm_param.ClearField("elastic")
    for name in ("weights", "snapshot_epoch", "display_epoch", "max_epoch", "display", "eval_type"):
        param.ClearField(name)
    leave_tests_out(param)
    param.max_iter, param.snapshot, param.snapshot_after_train = 1, 0, False
    param.snapshot_prefix = ""
    param.epoch_size = param.epoch_size or 1  # synthetic data has none


def _test(trial: Trial, make_feeder: Callable[..., Feeder]) -> dict[str, np.ndarray]:
    """One batch."""
    config = read_net(trial.file, trial.overrides)
    config.message.state.phase = proto.TEST
    add_state(config.message.state, trial.level, trial.stages)
    evaluator = Evaluator(config, World(), make_feeder=make_feeder)
    _give_statistics(evaluator.net)
    return evaluator.run(1)


def _give_statistics(net: Net) -> None:
    """Before any training BatchNorm's variances are 0, and what it divides by is tiny: layer after layer, numbers grow
    out of range. 1 instead."""
    for blobs in net.params.values():
        if len(blobs) >= 3 and blobs[2].shape == (1,) and not blobs[2].get().any() and not blobs[1].get().any():
            for blob in blobs[1:3]:
                blob.set(np.ones(blob.shape, np.float32))


def _limit_memory() -> None:
    """So that a net which is too large ends itself and nobody else."""
    limit_data(int(_MEMORY_SHARE * available_memory()))
    with open("/proc/self/oom_score_adj", "w") as file:  # the first that the system ends when memory is short
        file.write("1000")


def main() -> None:
    """Reads a Trial as JSON from standard input, writes its Outcome as the last line of standard output."""
    request = json.load(sys.stdin)
    # Libraries print; what they say must not get between the lines.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _limit_memory()
    trial = Trial(**{**request, "stages": tuple(request["stages"]), "overrides": tuple(request["overrides"])})
    if trial.python_layers:
        import engine.caffe  # which they import  # noqa: F401

        allow_modules()
    json.dump(asdict(run(trial)), answers)
    answers.close()
