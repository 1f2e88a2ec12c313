"""Tells age and memory of the own process, for the programs of engine's rivals. Needs Python alone."""

import os
import time
from pathlib import Path


def process_age() -> float:
    """Returns the seconds since this process was started (proc(5): starttime, in clock ticks since boot)."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def peak_memory() -> int:
    """Returns the most memory that this process has had (VmHWM), in bytes."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])
