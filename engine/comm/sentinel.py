"""This rank's side of its sentinel: the small process that notices when a rank dies and tells the others.

Launchers differ in what they do then: some print only a process id, some wait for ever. The sentinel is started before MPI, with
no descriptor of the rank but stderr, in a session of its own so that the launcher's clean-up does not reach it before it has
spoken. See sentinel_process.py for what it does.
"""

import os
import subprocess
import sys
from pathlib import Path


class Sentinel:
    def __init__(self, rank: int):
        program = Path(__file__).with_name("sentinel_process.py")
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(program), str(rank), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
            bufsize=1,
        )
        self._rank = rank

    def hub(self) -> str | None:
        """Where rank 0's sentinel can be reached, for join(); None on the other ranks."""
        return self._process.stdout.readline().strip() if self._rank == 0 else None

    def join(self, hub: str) -> None:
        """Connects the sentinel to rank 0's. From now on a death is reported."""
        self._tell(f"join {hub}")

    def failed(self) -> bool:
        """This rank is about to abort the run: its end, and that of the others, is no news. True if it is the first to fail."""
        return not self._tell("fail") or self._process.stdout.readline().strip() != "late"

    def farewell(self) -> None:
        """This rank ends well."""
        self._tell("bye")

    def _tell(self, line: str) -> bool:
        try:
            self._process.stdin.write(line + "\n")
            return True
        except OSError:  # somebody killed it: the run goes on without
            return False
