"""Two features of a solver together: see pairs.py. The first tests take some of the pairs, the slow ones all."""

import pytest

from engine.comm.world import World
from tests.mpi import run_ranks
from tests.solver.pairs import faults, pairs

# Words of the messages by which a pair may be refused.
REFUSED = ("goes with type", "has no momentum", "say the same thing", "does not go together with")


def wrong(found: list[str]) -> list[str]:
    """Returns the faults without refusals for a known reason."""
    return [line for line in found if not any("refused: " in line and why in line for why in REFUSED)]


@pytest.mark.parametrize("every", [93, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])])
def test_going_on(every, tmp_path):
    (folder := tmp_path / "run").mkdir()
    assert wrong([*faults(pairs()[::every], folder, World())]) == []


RANKS = """
from pathlib import Path
from engine.comm.world import world
from tests.solver.pairs import faults, pairs
for fault in faults(pairs()[5::{every}], Path({folder!r}), world()):
    print(fault)
print("fine")
world().close()
"""


@pytest.mark.mpi
@pytest.mark.parametrize("every", [183, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_on_two_ranks(every, tmp_path):
    done = run_ranks(2, RANKS.format(every=every, folder=str(tmp_path)), timeout=3600 if every == 1 else 200)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and lines.count("fine") == 2, done.stderr[-3000:]
    assert wrong([line for line in lines if line != "fine"]) == []
