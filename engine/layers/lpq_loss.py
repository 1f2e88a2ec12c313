"""Computes a loss of the channels' differences at each position, raised to powers, as FlowNet 2 does."""

from __future__ import annotations

import math

from engine.layers.base import Attributes, Shape
from engine.layers.loss import LossLayer
from engine.layers.registry import register


class FlowLoss(LossLayer):
    """The base of FlowNet 2's losses. Bottoms: a and, if given, b, of one shape (N, C, ...); top: the loss () of a - b,
    or of a."""

    bottom_range = (1, 2)
    constant_bottoms = frozenset()

    def infer(self) -> list[Shape]:
        if len(self.shapes[0]) < 2 or len(set(self.shapes)) > 1:
            raise self.error(f"expected bottoms of one shape (N, C, ...), got {', '.join(map(str, self.shapes))}")
        return [()]

    def flops(self) -> int:
        return 5 * math.prod(self.shapes[0])


@register("LpqLoss")
class LpqLoss(FlowLoss):
    """Computes the sum over the positions of (s sum over the channels of (|a - b| + p_epsilon)^p + q_epsilon)^q,
    divided by N (FlowNet 2's layer). Bottoms, top: see FlowLoss.

    s is 1, or 1/C with `l2_prescale_by_channels`. A difference that is NaN counts as 0, and not as an entry: with
    `normalize_by_num_entries` the sum is divided by the number of entries over C, not by N. If there are several values
    of `p` and `q`, each pair holds from its iteration of pq_episode_starts_at_iter on.
    """

    takes_nan = True

    @property
    def param(self):
        return self.message.lpq_loss_param

    def infer(self) -> list[Shape]:
        begins, p, q = list(self.param.pq_episode_starts_at_iter), len(self.param.p), len(self.param.q)
        if not (p == q and (len(begins) == p or (not begins and p == 1)) and p):
            raise self.error(
                "expected one p and q, or as many as pq_episode_starts_at_iter, got "
                f"{p} of p, {q} of q and {len(begins)} iterations"
            )
        if begins and (begins[0] != 0 or begins != sorted(set(begins))):
            raise self.error(f"expected iterations of pq_episode_starts_at_iter that rise from 0, got {begins}")
        return super().infer()

    def attributes(self) -> Attributes:
        param = self.param
        return {
            **super().attributes(),
            "begins": list(param.pq_episode_starts_at_iter) or [0],
            "p": list(param.p),
            "q": list(param.q),
            "p_epsilon": param.p_epsilon,
            "q_epsilon": param.q_epsilon,
            "scale": 1 / self.shapes[0][1] if param.l2_prescale_by_channels else 1.0,
            "by_entries": param.normalize_by_num_entries,
            "plateau": 0.0,
            "by_value": False,
        }
