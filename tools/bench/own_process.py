"""What the rivals' programs tell of their own process. Only Python is needed."""

import os
import time
from pathlib import Path


def process_age() -> float:
    """Seconds since this process was started (proc(5), stat: starttime, in clock ticks since boot)."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def peak_memory() -> int:
    """VmHWM of this process, in bytes."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])
