"""Writes clips, which are video files, to folders of frames, with the lists of these that VideoData layers read."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from engine.data.appearing import new_folder
from engine.data.convert_imageset import Output
from engine.data.decode import ImageError, as_pillow
from engine.data.labels import LABELS
from engine.data.limits import check_within
from engine.data.lmdb_writer import check_new
from engine.data.video_file import BadClip, Frame, read_frames
from engine.errors import ConfigError, DataError
from engine.host.cores import cores_at_once

BY_FOLDER, BY_ORDER = "folder", "order"  # in place of a label
LIST, TRAIN, VAL = "list.txt", "train.txt", "val.txt"
_TELL_EVERY = 16


@dataclass(frozen=True)
class Taken:
    """Which frames are taken of a clip.

    every: one of so many frames. fps: so many frames a second, 0: all; a clip that has fewer keeps all.
    max_frames: at most so many of those, 0: all.
    piece: cuts clips into pieces of so many frames, and leaves a shorter rest out; 0: clips stay whole."""

    every: int = 1
    fps: float = 0.0
    max_frames: int = 0
    piece: int = 0

    def check(self) -> None:
        """Raises ConfigError."""
        check_within(1, self.every, 2**31 - 1, "every", None)
        check_within(0, self.fps, 100_000, "fps", None)
        check_within(0, self.max_frames, 2**31 - 1, "max_frames", None)
        check_within(0, self.piece, 2**31 - 1, "piece", None)
        if self.fps and self.every > 1:
            raise ConfigError("fps and every exclude each other")

    def of(self, frames: Iterator[Frame], path: str) -> Iterator[Frame]:
        """Yields the frames that are taken of a clip. Raises BadClip."""
        taken, begin, interval = 0, None, -1
        for number, frame in enumerate(frames):
            if number % self.every:
                continue
            if self.fps:  # the first frame of each interval of 1 / fps seconds
                if frame.time is None:
                    raise BadClip("its frames have no times: take every N-th instead of so many a second", path)
                begin = frame.time if begin is None else begin
                now = int((frame.time - begin) * self.fps + 1e-6)
                if now == interval:
                    continue
                interval = now
            yield frame
            taken += 1
            if taken == self.max_frames:
                return


@dataclass
class Clip:
    """A video file, the folder of its frames below that of all clips, and its label.

    pieces: folders and frames that have been written. size: (width, height) of the frames. bad: why there are none."""

    path: str
    folder: str
    label: int
    pieces: list[tuple[str, int]] = field(default_factory=list)
    size: tuple[int, int] = (0, 0)
    bad: BadClip | None = None


@dataclass
class Conversion:
    """What convert_video did.

    clips: those that were written. skipped: path -> why it was skipped. frames: the number of frames of all clips.
    lists: the number of pieces by the name of the list. classes: the classes' names, if folders give the labels."""

    clips: list[Clip] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    lists: dict[str, int] = field(default_factory=dict)
    classes: list[str] = field(default_factory=list)

    @property
    def frames(self) -> int:
        return sum(frames for clip in self.clips for _, frames in clip.pieces)

    @property
    def sizes(self) -> Counter[tuple[int, int]]:
        """Returns the number of clips by the size of their frames, (width, height)."""
        return Counter(clip.size for clip in self.clips)

    def table(self) -> list[str]:
        """Returns a line for each class: its label, its name, and how many clips it has."""
        counts = Counter(clip.label for clip in self.clips)
        return [f"class {label} {name}: {counts[label]} clips" for label, name in enumerate(self.classes)]


def convert_video(
    clips: Sequence[str],
    folder: str,
    output: Output | None = None,
    taken: Taken | None = None,
    *,
    label: int | str = 0,
    val_fraction: float = 0.0,
    skip_bad_clips: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Conversion:
    """Writes the frames of clips to a new folder, and list.txt, which VideoData reads.

    Args:
        clips: video files.
        output: what frames become; they are JPEGs or PNGs, by its encode_type.
        label: of all clips; BY_FOLDER: of each by the folder that it lies in, numbered in alphabetical order; BY_ORDER:
            its place among the clips.
        val_fraction: the last pieces of each clip, this fraction of them, are in val.txt; the others then in train.txt.
        skip_bad_clips: whether to leave out files that are no video, or damaged.
        progress: is called with the number of frames written, now and then, by one thread at a time.

    Frames are FOLDER/CLIP/image_0001.jpg and so on, of pieces FOLDER/CLIP/0001/image_0001.jpg; BY_FOLDER puts the name
    of the class before CLIP. The folder appears under its name when it is complete. Raises DataError if the folder
    exists, a clip cannot be decoded, two have the same name, or the disk is full; ConfigError for values out of range;
    EngineError without PyAV. Then, or if a signal ends the process, nothing is left behind.
    """
    output = replace(output or Output(), encoded=True, encode_type=(output and output.encode_type) or "jpg")
    taken = taken or Taken()
    _check(output, taken, val_fraction)
    root = Path(os.path.abspath(folder))
    check_new(str(root))
    conversion = Conversion(classes=_classes(clips) if label == BY_FOLDER else [])
    todo = _named(clips, label, conversion.classes)
    for clip in todo:
        _check_listed(f"{root}/{clip.folder}")
    with new_folder(str(root)) as temporary:
        with contextlib.closing(_written(todo, temporary, output, taken, progress)) as written:
            for clip in written:
                _count(conversion, clip, skip_bad_clips)
        if not conversion.clips:
            raise DataError(f"none of {len(todo)} clips can be decoded, {next(iter(conversion.skipped.values()))}")
        for name, text in _lists(conversion, root, val_fraction).items():
            (temporary / name).write_text(text, encoding="utf-8")
    return conversion


def _check(output: Output, taken: Taken, val_fraction: float) -> None:
    """Raises ConfigError for values out of range."""
    output.check()
    taken.check()
    check_within(0, val_fraction, 0.99, "val_fraction", None)
    if val_fraction and not taken.piece:
        raise ConfigError("val_fraction sets pieces aside: say how long they are (--piece)")


def _count(conversion: Conversion, clip: Clip, skip_bad_clips: bool) -> None:
    """Counts a clip, or skips a bad one. Raises BadClip if bad clips are not to be skipped."""
    if clip.bad and not skip_bad_clips:
        raise clip.bad
    if clip.bad:
        conversion.skipped[clip.path] = str(clip.bad)
    else:
        conversion.clips.append(clip)


def _classes(clips: Sequence[str]) -> list[str]:
    return sorted({Path(os.path.abspath(clip)).parent.name for clip in clips})


def _named(clips: Sequence[str], label: int | str, classes: list[str]) -> list[Clip]:
    """Returns the clips with their folders and labels. Raises DataError."""
    todo: dict[str, Clip] = {}
    for number, path in enumerate(clips):
        whole = Path(os.path.abspath(path))
        parent, name = whole.parent.name, whole.stem
        folder = f"{parent}/{name}" if classes else name
        first = folder.partition("/")[0]
        if name in ("", ".", "..") or first in ("", LIST, TRAIN, VAL, LABELS):
            raise DataError("no folder of frames can have the clip's name; rename it", path)
        if folder in todo:
            raise DataError(f"it has the same name as {todo[folder].path}; rename one of them", path)
        number = classes.index(parent) if classes else number if label == BY_ORDER else int(label)
        todo[folder] = Clip(path, folder, number)
    return list(todo.values())


def _check_listed(folder: str) -> None:
    """Raises DataError if a line of a list cannot name the folder."""
    line = f"{folder} 1 0"
    try:
        line.encode()
    except UnicodeEncodeError:
        raise DataError("a list cannot name it: expected a name in UTF-8", folder) from None
    if line.splitlines() != [line] or line.rsplit(None, 2)[0] != folder or "\0" in line:
        raise DataError("a list cannot name it: expected no newline in it, and no blank at its end", folder)


def _written(
    todo: list[Clip], root: Path, output: Output, taken: Taken, progress: Callable[[int], None] | None
) -> Generator[Clip, None, None]:
    """Yields each clip when its frames are written, by as many threads as there are cores."""
    stop, lock, done = threading.Event(), threading.Lock(), 0

    def tell(frames: int) -> None:
        nonlocal done
        with lock:
            done += frames
            if progress:
                progress(done)

    def write(clip: Clip) -> Clip:
        if not stop.is_set():
            try:
                _write(clip, root, output, taken, stop, tell)
            except BadClip as error:
                shutil.rmtree(root / clip.folder, ignore_errors=True)
                clip.bad = error
        return clip

    with ThreadPoolExecutor(cores_at_once(), thread_name_prefix="clip") as pool:
        try:
            clips = [pool.submit(write, clip) for clip in todo]
            for clip in clips:
                yield clip.result()
        finally:
            stop.set()  # or the pool would wait until all are written


def _write(
    clip: Clip, root: Path, output: Output, taken: Taken, stop: threading.Event, tell: Callable[[int], None]
) -> None:
    """Writes the frames of a clip. tell: called with the number of frames written since the last call. Raises BadClip,
    OSError."""
    untold = 0
    with contextlib.closing(read_frames(clip.path)) as frames:
        for number, frame in enumerate(taken.of(frames, clip.path)):
            if stop.is_set():
                return
            piece, within = divmod(number, taken.piece) if taken.piece else (0, number)
            folder = f"{clip.folder}/{piece + 1:04d}" if taken.piece else clip.folder
            if within == 0:
                (root / folder).mkdir(parents=True)
                clip.pieces.append((folder, 0))
            (root / folder / f"image_{within + 1:04d}.{output.encode_type}").write_bytes(_picture(clip, frame, output))
            clip.pieces[-1] = (folder, within + 1)
            untold += 1
            if untold == _TELL_EVERY:
                tell(untold)
                untold = 0
    tell(untold)
    if taken.piece and clip.pieces[-1][1] < taken.piece:
        folder, left = clip.pieces.pop()
        shutil.rmtree(root / folder)
        if not clip.pieces:
            raise BadClip(f"it has {left} frames, fewer than a piece of {taken.piece}", clip.path)


def _picture(clip: Clip, frame: Frame, output: Output) -> bytes:
    """Returns a frame as the bytes of an image file. Raises BadClip."""
    try:
        picture = output.picture(as_pillow(frame.pixels()))
    except ImageError as error:
        raise BadClip(f"a frame of it cannot be written: {error}", clip.path) from None
    if clip.size not in ((0, 0), picture.size):
        sizes = " and then ".join(f"{width} x {height}" for width, height in (clip.size, picture.size))
        raise BadClip(f"its frames have {sizes} pixels; --resize_height and --resize_width make it one", clip.path)
    clip.size = picture.size
    return output.file(picture, output.encode_type)


def _lists(conversion: Conversion, root: Path, val_fraction: float) -> dict[str, str]:
    """Returns the texts of the lists by the names of their files. Raises DataError if a list would be empty."""
    texts = {TRAIN: "", VAL: ""} if val_fraction else {LIST: ""}
    conversion.lists = dict.fromkeys(texts, 0)
    for clip in conversion.clips:
        aside = round(val_fraction * len(clip.pieces))
        for number, (folder, frames) in enumerate(clip.pieces):
            name = LIST if not val_fraction else VAL if number >= len(clip.pieces) - aside else TRAIN
            texts[name] += f"{root}/{folder} {frames} {clip.label}\n"
            conversion.lists[name] += 1
    for name, pieces in conversion.lists.items():
        if not pieces:
            total = sum(conversion.lists.values())
            raise DataError(f"val_fraction {val_fraction:g} of {total} pieces leaves none for {name}")
    if conversion.classes:
        texts[LABELS] = "".join(f"{name}\n" for name in conversion.classes)
    return texts
