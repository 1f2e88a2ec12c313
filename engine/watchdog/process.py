"""Processes of this host, as the system shows them in /proc. Standard library only."""

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


def _start_of(pid: int) -> str:
    """Ticks from the system's start to that of the process."""
    fields = _fields(pid)
    return fields[19] if fields else ""


def _fields(pid: int) -> list[str]:
    """Of /proc/PID/stat, what stands behind the command's name."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2].decode().split()
    except OSError:
        return []
