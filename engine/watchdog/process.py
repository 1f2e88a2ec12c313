"""Processes of this host, as the system shows them in /proc. Standard library only."""

import os
import socket


def state_of(pid: int) -> str:
    """The system's letter: R, S, D (waits for a disk), T (stopped), t (by a debugger), Z; "" if there is no process."""
    return (_fields(pid) or [""])[0]


def identity(pid: int) -> str:
    """Returns what names a process for has_ended(), for good: another that gets its number begins at another time."""
    return f"{socket.gethostname()} {pid} {_start_of(pid)}"


def has_ended(name: str) -> bool:
    """Whether the process of that identity() has ended; False for one of another host, which is not seen from here."""
    host, pid, start = name.rsplit(" ", 2)
    return host == socket.gethostname() and (_start_of(int(pid)) != start or state_of(int(pid)) in ("Z", "X"))


def descendants(pid: int) -> list[int]:
    """Returns the processes that a process has started, and that these have, as far as they still run."""
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
    """Ticks from the system's start to that of the process."""
    fields = _fields(pid)
    return fields[19] if fields else ""


def _fields(pid: int | str) -> list[str]:
    """Of /proc/PID/stat, what stands behind the command's name."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2].decode().split()
    except OSError:
        return []
