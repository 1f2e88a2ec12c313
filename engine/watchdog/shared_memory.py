"""Removes the files of shared memory that MPI makes for a run. A rank that is killed leaves them behind, and their
memory stays taken until somebody removes them. Standard library only.

Only the ranks of one run map such a file, and they can use it when its name is gone. So any rank's sentinel may remove
it once the run has failed. Ranks that end well remove it themselves.
"""

import contextlib
import os
import re

# Of MPICH and its derivatives, Open MPI (vader: version 4), Intel MPI, and what they build on: UCX, PSM2 and PSM3.
NAMES = re.compile(
    r"/dev/shm/(?:mpich_(?:shm|vci)_|(?:vader|sm)_segment\.|Intel_MPI_|ucx_shm_posix_|psm[23]_shm\.)[\w.:@+-]+"
)


class SharedMemory:
    """The files of one process: note() them while it runs, remove() them when it has failed, forget() them when it ends
    well."""

    def __init__(self, pid: int):
        self._maps = f"/proc/{pid}/maps"
        self._inodes: dict[str, int] = {}  # by path; another run's file of this name has another inode

    def note(self) -> None:
        """Remembers the files that the process has mapped by now."""
        with contextlib.suppress(OSError), open(self._maps, errors="surrogateescape") as lines:
            for line in lines:
                *_, inode, path = line.rstrip("\n").split(maxsplit=5)
                if NAMES.fullmatch(path):  # one that is unlinked already ends with " (deleted)"
                    self._inodes[path] = int(inode)

    def forget(self) -> None:
        self._inodes.clear()

    def remove(self) -> None:
        for path, inode in self._inodes.items():
            with contextlib.suppress(OSError):  # another rank's sentinel was faster
                found = os.lstat(path)
                if (found.st_ino, found.st_uid) == (inode, os.geteuid()):
                    os.unlink(path)
        self.forget()
