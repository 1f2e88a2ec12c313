"""Processes of this host, as the system shows them in /proc. Standard library only."""

import os
import socket


def state_of(pid: int) -> str:
    """Returns the system's letter: R (runs), S (sleeps), D (waits for a disk), T (stopped), t (stopped by a debugger),
    Z (ended); "" if there is no such process."""
    return (_fields(pid) or [""])[0]


def identity(pid: int) -> str:
    """Returns a name of a process for has_ended(). It holds the time of its start: a later process may get its
    number."""
    return f"{socket.gethostname()} {pid} {_start_of(pid)}"


def has_ended(name: str) -> bool:
    """Returns whether the process of that identity() has ended; False for one of another host, which cannot be seen."""
    host, pid, start = name.rsplit(" ", 2)
    return host == socket.gethostname() and (_start_of(int(pid)) != start or state_of(int(pid)) in ("Z", "X"))


def descendants(pid: int) -> list[int]:
    """Returns the processes that still run of those that a process has started, that these have started, and so on."""
    parents = {int(name): int(found[1]) for name in os.listdir("/proc") if name.isdigit() and (found := _fields(name))}
    family = {pid}
    while more := {each for each, parent in parents.items() if parent in family} - family:
        family |= more
    return sorted(family - {pid})


def command_of(pid: int) -> list[str]:
    """Returns the words that a process was started with; [] if there is none."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return os.fsdecode(file.read()).rstrip("\0").split("\0")
    except OSError:
        return []


def catches(pid: int, number: int) -> bool:
    """Returns whether a process has a handler for this signal."""
    try:
        with open(f"/proc/{pid}/status") as file:
            (caught,) = (line.split()[1] for line in file if line.startswith("SigCgt:"))
    except (OSError, ValueError):
        return False
    return bool(int(caught, 16) >> (number - 1) & 1)


def _start_of(pid: int) -> str:
    """Returns the clock ticks from the system's start to that of the process; "" if there is no such process."""
    fields = _fields(pid)
    return fields[19] if fields else ""


def _fields(pid: int | str) -> list[str]:
    """Returns the fields of /proc/PID/stat behind the command's name; [] if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2].decode().split()
    except OSError:
        return []
