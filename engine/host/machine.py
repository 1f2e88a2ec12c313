"""What the system says of the machine and of this process: answers of psutil, and two that psutil does not give.

Functions import psutil when they are called: the import takes longer than all else here, and most processes need none.
"""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path


def memory() -> int:
    """Returns the bytes of memory that the machine has; memory.py tells what is available of it."""
    import psutil

    return psutil.virtual_memory().total


def interrupt_seconds() -> float:
    """Returns the seconds that all cores together have spent on interrupts since the machine was started."""
    import psutil

    times = psutil.cpu_times()
    return times.irq + times.softirq


def processor() -> str:
    """Returns the name of the processor's model, or of its architecture where the system knows no model."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def process_age() -> float:
    """Returns the seconds since this process was started (proc(5), stat: starttime, in clock ticks since boot)."""
    with open("/proc/self/stat") as file:  # psutil's create_time() counts from a boot time of whole seconds
        ticks = int(file.read().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
