"""The test phase of a solver: its test nets, which read the weights of the train net."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from engine.inference.evaluator import Evaluator
from engine.net import NetOptions
from engine.report.log import log

if TYPE_CHECKING:
    from engine.config import Config
    from engine.data.feeder import Feeder
    from engine.solver.solver import Solver


class Testing:
    """`evaluators`: one for each test net; none if the solver does not test."""

    def __init__(self, solver: Solver, configs: list[Config], skip_bad_images: bool, feeder: Callable[..., Feeder]):
        self._solver = solver
        param = solver.param
        options = NetOptions(seed=solver.seed, precision=solver.precision)
        if solver.every_blob:
            options = options.watched().replace(gradients=True)
        self.evaluators = [
            Evaluator(
                config,
                solver.world,
                options,
                share=solver.net,
                feeder=partial(feeder, skip_bad_images=skip_bad_images),
                ap_version=param.ap_version,
                show_per_class=param.show_per_class_result,
                index=index,
            )
            for index, config in enumerate(configs if param.test_interval or param.test_iter else [])
        ]

    def is_due(self) -> bool:
        """Before the solver's next iteration."""
        solver = self._solver
        interval = solver.param.test_interval
        if not interval or solver.iteration % interval or not self.evaluators:
            return False
        return solver.iteration > 0 or solver.param.test_initialization

    def run(self) -> None:
        """Collective. All test nets on the weights as they are, which must be settled."""
        solver = self._solver
        for index, evaluator in enumerate(self.evaluators):
            log(f"Iteration {solver.iteration}, Testing net (#{index})")
            solver.model_parallel.copy_to(evaluator.net)
            count = solver.param.test_iter[index] if index < len(solver.param.test_iter) else None
            solver.display.test(evaluator, evaluator.run(count), index)

    def close(self) -> None:
        for evaluator in self.evaluators:
            evaluator.close()
