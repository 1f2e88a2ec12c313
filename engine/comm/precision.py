"""Decides which precision a net can run in on the present processors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.host.ranks import gather_everywhere
from engine.report.log import warn

if TYPE_CHECKING:
    from engine.comm.world import World


def usable_precision(asked: str, world: World) -> str:
    """Collective. "bf16" where it is asked for and every rank's processor computes it natively, else "fp32", with a
    line in the log."""
    from engine.host import _core

    if asked == "fp32":
        return "fp32"
    mine = "" if _core.has_bf16() else f"rank {world.rank} has {_core.onednn_isa()}"
    lacking = [each for each in gather_everywhere(world, mine) if each]
    if not lacking:
        return "bf16"
    warn(f"precision bf16 needs processors with AVX512_BF16 or AMX; {lacking[0]}. Running in fp32.")
    return "fp32"
