"""Copies sources to a disk or to the memory of each host: `stage` of data_param.

One process of a host copies, the others wait. A copy in use is always whole: it is made under another name, compared
with its source, gets a list of its source's files, and is renamed last. It is used again while the sizes and times of
its source are the same. It is removed when the last process of the host that reads it ends, unless it is to be kept; if
that process is killed, its sentinel removes the copy. A source that has changed is copied anew, beside the older copy:
another job may read that, and it is removed once none does.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import stat
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.data.host_lock import getting_on, host_lock, lock_file
from engine.data.lmdb_writer import new_lmdb
from engine.data.registry import Source, files_of, open_source, recognised
from engine.data.shards import is_pattern
from engine.errors import DataError
from engine.files import atomic_write, reason
from engine.host.memory import available_memory, size_text

LIST, USERS = "engine-stage.json", "engine-stage.users"
_BLOCK = 8 << 20
_TELL_SECONDS = 10.0  # between two lines of the log
_SHOW_SECONDS = 0.5  # between two signs of progress to watchdogs, whose patience may be short
_HEAD_START = 0.5  # seconds that the first rank of a host is ahead: its log is the likeliest to be seen
_log = logging.getLogger("engine")
_held: dict[Path, tuple[int, bool]] = {}  # copy -> (descriptor whose lock says that it is in use, whether to keep it)


@dataclass(frozen=True)
class CopyShare:
    """Tells which ranks read a copy together.

    ranks: those of this host that do. rank: this one's place among them. hosts: the number of hosts. host: this one's
    place among them."""

    rank: int = 0
    ranks: tuple[int, ...] = (0,)
    host: int = 0
    hosts: int = 1
    leaves: Callable[[list[str], list[str]], None] = lambda locks, folders: None  # see World.leaves()
    keeps: Callable[[list[str]], None] = lambda folders: None  # see World.keeps()


def staged(
    source: str,
    stage: str,
    share: CopyShare,
    *,
    keep: bool,
    part: bool,
    fields: Sequence[str] = (),
    where: str | None = None,
) -> str:
    """Returns the path of the copy of a source. If there is no whole copy, makes one, or waits for the process that
    does.

    Args:
        source: the path as the net names it.
        stage: the folder of the copies, on the host's own disk or in its memory. It is made if need be, but not the
            folder that it is in: the net that names it may be a stranger's.
        share: the ranks that read the copy together.
        keep: whether the copy stays when nobody reads it any more.
        part: whether the copy holds only the items host, host + hosts, ..., as an LMDB; see classes_of_part().
        fields: what the items of a part are made of, as open_source() takes them.
        where: the place of the layer, for messages.

    Raises DataError if the source cannot be read, there is too little space, or the copy differs from the source.
    """
    files = files_of(source, where)
    stamp = _stamp(files, where)
    if recognised(source) == "FOLDER":
        folder = os.path.abspath(source)  # the common folder of its files may be its only class folder
    else:
        folders = [os.path.dirname(os.path.abspath(file)) for file in files]
        # A pattern finds the same files in the copy only if that has all folders for which it has braces or stars.
        folder = os.path.commonpath([*folders, *([_before_pattern(source)] if is_pattern(source) else [])])
    inside = os.path.relpath(os.path.abspath(source), folder)
    which = json.dumps(["part", share.host, share.hosts, *fields]) if part else "all"
    whose = f"{os.path.abspath(source)}\0{which}\0{os.getuid()}"  # the copy of another user is not to be trusted
    name = re.sub(r"[^\w.-]", "_", os.path.basename(source.rstrip("/")))[:80]  # no braces or stars
    copy = Path(stage) / f"{name}.{_key(whose)}.{_key(json.dumps(stamp))}"
    if share.rank:
        time.sleep(_HEAD_START)
    if not os.path.isdir(parent := os.path.dirname(os.path.abspath(stage))):
        raise DataError(f"stage {stage}: there is no folder {parent}; make it, or name another place", where)
    with _errors(stage, where):
        Path(stage).mkdir(exist_ok=True)
    folders = [str(copy), str(_partial(copy))]
    if keep:
        share.keeps(folders)
    elif not _held.get(copy, (0, False))[1]:
        locks = filter(None, (lock_file(_lock_name(copy)), copy / USERS))
        share.leaves([*map(str, locks)], folders)
    with host_lock(_lock_name(copy), f"copying {source} to {stage}"):
        with _errors(stage, where):
            if not _is_whole(copy, stamp):
                _make_room(copy, where)
                if part:
                    _copy_part(source, copy, share, stamp, fields, where)
                else:
                    _copy_all(source, files, folder, copy, stamp, where)
            _use(copy, keep)
    return str(copy / "part" if part else copy / inside)


def classes_of_part(path: str) -> list[str]:
    """Returns the names of the classes of a part's source. path: as staged() returns it."""
    return json.loads((Path(path).parent / LIST).read_text())["classes"]


def release() -> None:
    """Ends the use of all copies by this process, and removes those that nobody else uses and that are not to be
    kept."""
    while _held:
        copy, (descriptor, keep) = _held.popitem()
        with contextlib.suppress(OSError, DataError):
            with host_lock(_lock_name(copy), f"using {copy}"):
                os.close(descriptor)
                if not keep and _is_unused(copy):
                    _clear(copy)


atexit.register(release)


def _stamp(files: Sequence[str], where: str | None) -> list[list]:
    """Returns [path, size, time] of each file of a source, which changes when the source does. The paths are absolute,
    however the source's is spelled."""
    found = ((os.path.abspath(file), _stat(file, where)) for file in files)
    return [[path, each.st_size, each.st_mtime_ns] for path, each in found]


def _key(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:12]


def _lock_name(copy: Path) -> str:
    """Returns the name of the lock of all copies of a source, of whatever age."""
    return f"stage {os.path.realpath(copy.with_suffix(''))}"


def _before_pattern(source: str) -> str:
    """Returns the folders of a path before the first one whose name stands for several."""
    found = re.match(r"(/[^/{*?[]*(?=/))*", os.path.abspath(source))
    return found[0] if found and found[0] else "/"


def _stat(file: str, where: str | None) -> os.stat_result:
    try:
        found = os.stat(file)
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {reason(error)}", where) from None
    if not stat.S_ISREG(found.st_mode):  # a device would be copied for ever
        raise DataError(f"{file}: cannot be read: it is no regular file", where)
    return found


@contextlib.contextmanager
def _errors(stage: str, where: str | None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(f"stage {stage}: {reason(error)}", where) from None


def _is_whole(copy: Path, stamp: list[list]) -> bool:
    """Returns whether this user has a copy of the source as it is now, and all files of the copy have the sizes and
    times that they had when it was made."""
    try:
        folder = os.lstat(copy)
        if not stat.S_ISDIR(folder.st_mode) or folder.st_uid != os.getuid() or folder.st_mode & 0o022:
            return False
        listed = json.loads((copy / LIST).read_text())
        if listed["source"] != stamp:
            return False
        found = [(os.stat(copy / name), size, time_ns) for name, size, time_ns in listed["copy"]]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return all((each.st_size, each.st_mtime_ns) == (size, time_ns) for each, size, time_ns in found)


def _partial(copy: Path) -> Path:
    return copy.with_name(f".{copy.name}.partial")


def _clear(copy: Path) -> None:
    """Removes a copy, and what a process that was killed while it copied has left. Raises DataError if it cannot."""
    for folder in (copy, _partial(copy)):
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            raise DataError(f"{folder} cannot be removed; it is not a whole copy")


def _make_room(copy: Path, where: str | None) -> None:
    """Removes a broken copy of this name, and older copies of the source, but nothing that a process reads. Raises
    DataError, OSError."""
    if not _is_unused(copy):
        raise DataError(f"{copy} is read, but no longer whole; end what reads it, or name another stage", where)
    _clear(copy)
    for partial in copy.parent.glob(f".{copy.stem}.*.partial"):
        shutil.rmtree(partial, ignore_errors=True)
    for other in copy.parent.glob(f"{copy.stem}.*"):
        with contextlib.suppress(OSError, DataError):
            if _is_unused(other):
                _clear(other)


def _check_space(stage: Path, needed: int, what: str, where: str | None) -> None:
    """Raises DataError if a copy would leave too little room to the others of the host: the net that asks for it may be
    a stranger's. needed: bytes of the copy. what: its content, for the message."""
    free = shutil.disk_usage(stage).free
    most, of = free * 9 // 10, "nine tenths"
    if _is_memory(stage):
        free = min(free, available_memory())
        most, of = free // 2, "half"  # the run itself will need memory later
    if needed > most:
        raise DataError(
            f"stage {stage}: {what} takes {size_text(needed)}, {size_text(free)} are free there, of which a copy takes "
            f"{of} at most; name another place, or set stage_part",
            where,
        )


def _is_memory(folder: Path) -> bool:
    device = os.stat(folder).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    lines = (line.split() for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines())
    kinds = (fields[fields.index("-") + 1] for fields in lines if fields[2] == number)  # see proc(5)
    return any(kind in ("tmpfs", "ramfs") for kind in kinds)


def _full(stage: Path, done: int, needed: int, where: str | None) -> DataError:
    return DataError(
        f"stage {stage}: the disk was full after {size_text(done)} of {size_text(needed)}; "
        f"{size_text(shutil.disk_usage(stage).free)} are free now that what was copied is gone",
        where,
    )


class _Teller:
    """Logs how far a copy is, and shows the processes that wait, and watchdogs, that it grows."""

    def __init__(self, source: str, partial: Path, needed: int):
        self._what, self._needed = f"Staging {source} to {partial.parent}", needed
        self._begin = self._told = self._shown = time.monotonic()
        _log.info(f"{self._what}: {size_text(needed)}")

    def __call__(self, done: int) -> None:
        now = time.monotonic()
        if now - self._shown >= _SHOW_SECONDS:
            self._shown = now
            getting_on()
        if now - self._told >= _TELL_SECONDS:
            self._told = now
            speed = done / (now - self._begin)
            left = (self._needed - done) / speed if speed else 0
            of = f"{size_text(done)} of {size_text(self._needed)}"
            _log.info(f"{self._what}: {of}, {speed / 1e6:.0f} MB/s, {left:.0f} s left")

    def end(self, done: int) -> None:
        _log.info(f"{self._what}: {size_text(done)} in {time.monotonic() - self._begin:.1f} s, compared")


def _copy_all(source: str, files: Sequence[str], folder: str, copy: Path, stamp: list[list], where: str | None) -> None:
    needed = sum(size for _, size, _ in stamp)
    _check_space(copy.parent, needed, source, where)
    partial = _partial(copy)
    partial.mkdir(mode=0o700)
    tell, done = _Teller(source, partial, needed), 0
    try:
        copied = []
        for file in files:
            name = os.path.relpath(os.path.abspath(file), folder)
            to = partial / name
            to.parent.mkdir(parents=True, exist_ok=True)
            checksum, size = _copy_file(file, to, lambda more, before=done: tell(before + more))
            done += size
            if _checksum(to, lambda done=done: tell(done)) != (checksum, size):
                raise DataError(f"stage {copy.parent}: the copy of {file} differs from it: is the disk sound?", where)
            copied.append([name, size, os.stat(to).st_mtime_ns])
        _write_list(partial, stamp, copied)
        if _stamp(files, where) != stamp:
            raise DataError(f"{source} has changed while it was copied to {copy.parent}", where)
        os.rename(partial, copy)
        tell.end(done)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _full(copy.parent, done, needed, where) from None
        raise
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _copy_file(file: str, to: Path, tell: Callable[[int], None]) -> tuple[int, int]:
    """Copies a file. Returns (checksum, size) of what was read. tell: called with the bytes copied so far."""
    checksum, size = 0, 0
    with open(file, "rb") as source, open(to, "xb") as out:
        while block := source.read(_BLOCK):
            out.write(block)
            checksum, size = zlib.crc32(block, checksum), size + len(block)
            tell(size)
    return checksum, size


def _checksum(file: Path, tell: Callable[[], None]) -> tuple[int, int]:
    checksum, size = 0, 0
    with open(file, "rb") as source:
        while block := source.read(_BLOCK):
            checksum, size = zlib.crc32(block, checksum), size + len(block)
            tell()
    return checksum, size


def _write_list(folder: Path, stamp: list[list], copied: list[list], classes: Sequence[str] = ()) -> None:
    with atomic_write(folder / LIST) as out:
        out.write(json.dumps({"source": stamp, "copy": copied, "classes": classes}).encode())


def _copy_part(
    source: str, copy: Path, share: CopyShare, stamp: list[list], fields: Sequence[str], where: str | None
) -> None:
    """Copies the items host, host + hosts, ... of a source, in their order, to an LMDB."""
    items = open_source(source, where, fields=fields)
    mine = range(share.host, len(items), share.hosts)
    if not len(mine):
        raise DataError(
            f"{source} has {len(items)} items for {share.hosts} hosts: stage_part needs one for each", where
        )
    needed = sum(size for _, size, _ in stamp) * len(mine) // len(items)
    _check_space(copy.parent, needed, f"every {share.hosts}th item of {source}", where)
    partial = _partial(copy)
    partial.mkdir(mode=0o700)
    tell, done = _Teller(source, partial, needed), 0
    checksums = np.empty(len(mine), np.uint32)
    try:
        with new_lmdb(str(partial / "part")) as put:
            for number, index in enumerate(mine):
                key, stored = items.item(index)
                value = stored if isinstance(stored, bytes) else stored.SerializeToString()
                put(f"{index:08d}_{key}".encode(errors="surrogateescape"), value)
                checksums[number], done = zlib.crc32(value), done + len(value)
                tell(done)
        _compare(open_source(str(partial / "part"), where), checksums, copy.parent, lambda: tell(done), where)
        found = os.stat(partial / "part/data.mdb")
        _write_list(partial, stamp, [["part/data.mdb", found.st_size, found.st_mtime_ns]], items.classes)
        os.rename(partial, copy)
        tell.end(done)
        _log.info(
            f"stage_part: this host reads its own {len(mine)} of {len(items)} items, in every epoch the same. They are "
            "shuffled among themselves only: a global batch is drawn from each host's items, not from all"
        )
    except (OSError, DataError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        if "No space left" in str(error):
            raise _full(copy.parent, done, needed, where) from None
        raise
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _compare(copied: Source, checksums: np.ndarray, stage: Path, tell: Callable[[], None], where: str | None) -> None:
    for number in range(len(checksums)):
        key, value = copied.item(number)
        tell()
        if not isinstance(value, bytes) or zlib.crc32(value) != checksums[number]:
            raise DataError(f"stage {stage}: the copy of '{key}' differs from it: is the disk sound?", where)


def _use(copy: Path, keep: bool) -> None:
    """Marks the copy as read by this process, by a lock that the system frees whatever ends the process."""
    descriptor = os.open(copy / USERS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    except OSError as error:  # so nobody can tell which process is the last to use it
        _log.warning(f"{copy} stays after the run: it cannot be locked: {reason(error)}")
    if copy in _held:  # its descriptor may be of a copy that was removed since
        before, kept = _held[copy]
        os.close(before)
        keep = keep or kept
    _held[copy] = descriptor, keep


def _is_unused(copy: Path) -> bool:
    try:
        descriptor = os.open(copy / USERS, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
