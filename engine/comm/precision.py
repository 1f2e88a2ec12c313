"""Decides in which precision a net runs on the processors of all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.host.ranks import gather_everywhere
from engine.report.log import warn

if TYPE_CHECKING:
    from engine import proto
    from engine.comm.world import World


LEAST_GAIN = 1.3  # bf16 must multiply matrices so many times faster, as conversions to it take time, too


def asked_precision(param: proto.SolverParameter) -> str:
    """Returns the precision that a solver asks for: "fp32" or "bf16"."""
    return param.Precision.Name(param.precision).lower()


def usable_precision(asked: str, world: World) -> str:
    """Collective. Returns "bf16" if it is asked for and saves time on every rank's processor, else "fp32". Warns if it
    was asked for in vain."""
    from engine.host import _core

    if asked == "fp32":
        return "fp32"
    gain = _core.bf16_gain()
    mine = "" if gain >= LEAST_GAIN else f"rank {world.rank} has {_core.onednn_isa()}"
    if mine and gain:
        mine += f", where bf16 takes {1 / gain:.1f} times as long"
    lacking = [each for each in gather_everywhere(world, mine) if each]
    if not lacking:
        return "bf16"
    warn(f"precision bf16 saves time by AVX512_BF16 or AMX only; {lacking[0]}. Running in fp32.")
    return "fp32"
