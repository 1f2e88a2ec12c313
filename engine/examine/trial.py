"""Takes one step of one net on synthetic data, in a separate process that `engine check --run` starts."""

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
_MEMORY_FRACTION = 0.8  # of the memory that is available when the trial begins


@dataclass(frozen=True)
class Trial:
    """What to try."""

    file: str
    kind: str  # "solver" or "net"
    phase: str  # TRAIN or TEST; TRAIN for a solver
    level: int | None = None
    stages: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    python_layers: bool = False  # whether the modules of Python layers may be imported
    picture: Sequence[int] | None = None  # see Supposition
    labels: str = "number"  # see Supposition


@dataclass
class Outcome:
    """What a trial came to."""

    reason: str = ""  # "" if it ran, else a word that says why not
    message: str = ""  # more about the reason
    seconds: float = 0.0
    batch: int = 0  # samples; 0: the net's own batch, as the net does not build with BATCH
    peak_bytes: int = 0
    outputs: dict[str, list[float]] = field(default_factory=dict)  # the first numbers of each output


def run(trial: Trial) -> Outcome:
    """Takes the step. It raises nothing: the outcome says what went wrong."""
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
    """Takes one iteration of a solver, or of SGD for a net, and returns the net's outputs."""
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
    """Makes a solver take one iteration, on one rank, without tests and files."""
    param = config.message
    param.comm_param.ClearField("elastic")
    for name in ("weights", "snapshot_epoch", "display_epoch", "max_epoch", "display", "eval_type"):
        param.ClearField(name)
    leave_tests_out(param)
    param.max_iter, param.snapshot, param.snapshot_after_train = 1, 0, False
    param.snapshot_prefix = ""
    param.epoch_size = param.epoch_size or 1  # synthetic data has none


def _test(trial: Trial, make_feeder: Callable[..., Feeder]) -> dict[str, np.ndarray]:
    """Tests one batch, and returns the net's outputs."""
    config = read_net(trial.file, trial.overrides)
    config.message.state.phase = proto.TEST
    add_state(config.message.state, trial.level, trial.stages)
    evaluator = Evaluator(config, World(), make_feeder=make_feeder)
    _give_statistics(evaluator.net)
    return evaluator.run(1)


def _give_statistics(net: Net) -> None:
    """Sets the variances of BatchNorm layers to 1. In a net that was never trained they are 0, so that layer after
    layer divides by a tiny number, and numbers grow out of range."""
    for blobs in net.params.values():
        if len(blobs) >= 3 and blobs[2].shape == (1,) and not blobs[2].get().any() and not blobs[1].get().any():
            for blob in blobs[1:3]:
                blob.set(np.ones(blob.shape, np.float32))


def _limit_memory() -> None:
    """Limits the memory of this process, so that a net which is too large ends no other process."""
    limit_data(int(_MEMORY_FRACTION * available_memory()))
    with open("/proc/self/oom_score_adj", "w") as file:  # the system ends this process first when memory is short
        file.write("1000")


def main() -> None:
    """Reads a Trial as JSON from stdin, and writes its Outcome as the last line of stdout."""
    request = json.load(sys.stdin)
    # What libraries print goes to stderr, so that it does not mix with the outcome.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _limit_memory()
    trial = Trial(**{**request, "stages": tuple(request["stages"]), "overrides": tuple(request["overrides"])})
    if trial.python_layers:
        import engine.caffe  # the modules import it  # noqa: F401

        allow_modules()
    json.dump(asdict(run(trial)), answers)
    answers.close()
