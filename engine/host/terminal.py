"""Finds the terminal behind a launcher: mpiexec gives its ranks pipes, and prints on its terminal what comes from
them."""

from __future__ import annotations

import os
import re
from pathlib import Path

# Names, which the system cuts off after 15 letters, of processes that pass on what a rank writes to stderr.
_PASS_ON = re.compile(r"mpiexec.*|mpirun.*|hydra_.*|prterun|prted|orted|orterun")


def launchers_terminal() -> str | None:
    """Returns the device of the terminal on which a launcher of this host shows the stderr of this process; None if
    there is no launcher or no terminal, or if another program reads that output."""
    supervisor = os.environ.get("ENGINE_SUPERVISOR", "  ").split(" ")[-2]
    try:
        process = os.getppid()
        while process > 1:
            folder = Path("/proc", str(process))
            name, _, rest = (folder / "stat").read_text().partition(" (")[2].rpartition(") ")
            if not _PASS_ON.fullmatch(name) and str(process) != supervisor:
                return None
            target = os.readlink(folder / "fd/2")
            if target.startswith("/dev/pts/") or target.startswith("/dev/tty"):
                return target
            process = int(rest.split()[1])
    except (OSError, ValueError, IndexError):  # the process is another user's, or has ended
        pass
    return None


def columns_of(device: str) -> int:
    """Returns the width of a terminal; 0 if it cannot be asked."""
    try:
        descriptor = os.open(device, os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:
        return 0
    try:
        return os.get_terminal_size(descriptor).columns
    except OSError:
        return 0
    finally:
        os.close(descriptor)
