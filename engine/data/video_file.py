"""Reads the pictures of a video file by FFmpeg, which PyAV brings along.

FFmpeg knows hundreds of formats. Some of them are lists of other files, or of addresses that it would fetch. Here it is
given an open file and nothing else: a file that asks for a second one is refused, formats and codecs are those below,
and frames have the limits of pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, TypeVar

import numpy as np

from engine.data.limits import MAX_PIXELS, MAX_SIDE, fits
from engine.errors import DataError, EngineError
from engine.files import opened, reason
from engine.host import _core

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

Result = TypeVar("Result")

# By FFmpeg's names; none of these reads another file.
FORMATS = ("mov", "matroska", "avi", "mpegts", "mpeg", "ogg", "flv", "asf", "gif")
CODECS = frozenset(
    "av1 cinepak dnxhd dvvideo ffv1 ffvhuff flv gif h263 h263p h264 hevc huffyuv libdav1d libvpx libvpx-vp9 mjpeg "
    "mpeg1video mpeg2video mpeg4 mpegvideo msmpeg4 msmpeg4v1 msmpeg4v2 png prores rawvideo theora vc1 vp6 vp6f vp8 vp9 "
    "wmv1 wmv2 wmv3".split()
)
_EXPECTED = "MP4, MOV, MKV, WebM, AVI, MPEG, Ogg, FLV, WMV or GIF"
# Formats whose headers tell the number of frames, or the length, and are written when the file is complete.
_TELL_FRAMES, _TELL_LENGTH = ("avi",), ("matroska,webm", "flv")
_WHOLE = 0.9  # a clip is whole if it has this fraction of what the header says: headers are not exact


class BadClip(DataError):
    """Raised for a file that is no video, or only a part of one. Such clips can be left out."""


class Frame:
    """A picture of a clip, which is converted when it is asked for."""

    def __init__(self, decoded: VideoFrame, guarded: _Guarded):
        self._decoded, self._guarded = decoded, guarded

    @property
    def time(self) -> float | None:
        """When it is shown, in seconds; None if the clip does not say."""
        return self._decoded.time

    def pixels(self) -> np.ndarray:
        """Returns (h, w, 3) bytes in the order B, G, R, turned upright as the clip says. Raises BadClip."""
        pixels = self._guarded(lambda: self._decoded.to_ndarray(format="bgr24"))
        return np.ascontiguousarray(np.rot90(pixels, round(self._decoded.rotation / 90)))


class _Guarded:
    """Calls functions of FFmpeg. Whatever they raise becomes a BadClip; if they crash, which C code can, the message of
    the signal names the clip."""

    def __init__(self, path: str):
        self.path = path
        self._name = str(DataError(path))  # as messages show it
        self.frames = 0  # the number of frames decoded so far

    def __call__(self, function: Callable[[], Result]) -> Result:
        _core.reading(self._name, b"")
        try:
            return function()
        except Exception as error:  # PyAV raises FFmpeg's errors, and Python's own for streams that it does not expect
            self.fail(getattr(error, "strerror", None) or reason(error))
        finally:
            _core.done_reading()

    def fail(self, why: str) -> NoReturn:
        if not self.frames:
            raise BadClip(f"it is no video that can be decoded: {why}; expected {_EXPECTED}", self.path) from None
        raise BadClip(
            f"it is damaged, or has been cut off, behind frame {self.frames}: {why}; --max_frames takes what is before",
            self.path,
        ) from None


def read_frames(path: str) -> Generator[Frame, None, None]:
    """Yields the pictures of a clip, in the order in which they are shown.

    Raises BadClip if it is no video, is damaged, or has frames that are too large; DataError if there is no such file;
    EngineError if PyAV is missing.
    """
    av = _av()
    with opened(path, DataError) as file:
        guarded = _Guarded(path)
        with guarded(lambda: _open(av, file)) as container:
            stream = _video_of(container, path)
            yield from _decoded(container, stream, guarded)


def _av() -> ModuleType:
    try:
        import av
    except ImportError:
        raise EngineError(
            "video files need PyAV, which is not installed: pip install 'prototxt-engine[video]'"
        ) from None
    return av


def _open(av: ModuleType, file: BinaryIO) -> InputContainer:
    options = {
        "format_whitelist": ",".join(FORMATS),
        "protocol_whitelist": "none",
        "codec_whitelist": "none",  # or FFmpeg would decode frames, without limits, to find what a stream is
    }
    return av.open(file, "r", container_options=options, io_open=_refuse, metadata_errors="replace")


def _refuse(url: str, flags: int, options: dict[str, str]) -> NoReturn:
    raise PermissionError(f"it names another file, {url!r}")


def _video_of(container: InputContainer, path: str) -> VideoStream:
    """Returns the first stream of pictures that is not an attached cover, with a decoder that keeps to the limits.
    Raises BadClip."""
    streams: list[Any] = [each for each in container.streams.video if "attached_pic" not in str(each.disposition)]
    if not streams:
        raise BadClip("it has no pictures: there is no video stream in it", path)
    codec = streams[0].codec_context
    if codec is None or codec.name not in CODECS:
        raise BadClip(f"its codec is not decoded here; known: {', '.join(sorted(CODECS))}", path)
    _check_size(codec.width, codec.height, path)
    codec.options = {"max_pixels": str(MAX_PIXELS), "err_detect": "explode"}  # or damages would be painted over
    codec.thread_count = 1  # a fault in a thread of FFmpeg's own would not be known as the clip's
    return streams[0]


def _check_size(width: int, height: int, path: str) -> None:
    if (width or height) and not fits(width, height):  # if neither is known, the first frame tells
        raise BadClip(
            f"its frames have {width} x {height} pixels; at most {MAX_SIDE} on a side and {MAX_PIXELS} in all are "
            "supported",
            path,
        )


def _decoded(container: InputContainer, stream: VideoStream, guarded: _Guarded) -> Iterator[Frame]:
    packets = container.demux()
    length = _Length(container, stream)
    while (packet := guarded(lambda: next(packets, None))) is not None:
        length.add(packet)
        if packet.stream.index != stream.index:  # packet.stream_index is 0 in packets that end a stream
            continue
        if packet.is_corrupt:
            guarded.fail("a part of the file is missing")
        for frame in guarded(partial(stream.decode, packet)):
            _check_size(frame.width, frame.height, guarded.path)
            if frame.is_corrupt:
                guarded.fail("a frame cannot be decoded")
            guarded.frames += 1
            yield Frame(frame, guarded)
    if not guarded.frames:
        guarded.fail("there is no frame in it")
    if why := length.missing():
        guarded.fail(why)


class _Length:
    """Compares how much of a clip there is with what its header says."""

    def __init__(self, container: InputContainer, stream: VideoStream):
        name = container.format.name
        self._frames = stream.frames if name in _TELL_FRAMES else 0
        self._seconds = (container.duration or 0) / 1e6 if name in _TELL_LENGTH else 0.0
        self._stream, self._packets = stream.index, 0
        self._first, self._last = float("inf"), 0.0

    def add(self, packet: Packet) -> None:
        self._packets += packet.stream.index == self._stream and packet.size > 0
        if packet.pts is not None and packet.time_base is not None:
            self._first = min(self._first, float(packet.pts * packet.time_base))
            self._last = max(self._last, float((packet.pts + (packet.duration or 0)) * packet.time_base))

    def missing(self) -> str:
        """Returns what is missing, "" if nothing is."""
        if self._packets < _WHOLE * self._frames:
            return f"its header says {self._frames} frames"
        if self._last - self._first < _WHOLE * self._seconds:
            return f"its header says {self._seconds:g} s, {max(0.0, self._last - self._first):g} s are there"
        return ""
