"""What the system says of the machine and of this process: answers of psutil, and two that psutil does not give.

Functions import psutil when they are called: the import takes longer than all else here, and most processes need none.
"""

from __future__ import annotations

import contextlib
import glob
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


def core_seconds() -> tuple[float, float]:
    """Returns the seconds that this process's threads have run, and those in which they could have run but had no core,
    since others had them all; zeros where the system does not count these (proc(5), schedstat)."""
    ran = waited = 0
    for path in glob.iglob("/proc/self/task/*/schedstat"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            thread_ran, thread_waited, _ = Path(path).read_text().split()
            ran, waited = ran + int(thread_ran), waited + int(thread_waited)
    return ran / 1e9, waited / 1e9
