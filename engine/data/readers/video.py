"""VideoData: Reads stacks (temporal segment networks) or clips (C3D) of frames, which are image files in a folder per
video."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image

from engine import proto
from engine.config.numbers import whole
from engine.data.decode import COLOR, GRAY, ImageError, as_array, decode_bytes, resized
from engine.data.image_tree import read_text
from engine.data.keyed_random import KeyedRandom
from engine.data.limits import MAX_BYTES, check_size
from engine.data.reader import PictureReader, Request, Sample, Shape, random_first
from engine.data.readers.database import picture_shape
from engine.data.registry import reader
from engine.data.transform import Transformer, crop_shape, forced_color
from engine.errors import ConfigError, DataError
from engine.files import read_bytes

MAX_FRAMES = 10_000  # in one sample
_RGB, _FLOW = "image_%04d.jpg", "flow_%c_%04d.jpg"
_NUMBER, _AXIS = re.compile(r"%(0?[1-9])?d"), "%c"


class Video(NamedTuple):
    """A line of the list. frames: the number of frames; for a clip without use_temporal_jitter, the first frame's
    number."""

    folder: str
    frames: int
    label: int


@reader("VideoData")
class VideoReader(PictureReader):
    """Gives two arrays: a stack of frames (channels, h, w) and its label (). The lines of the list are `folder
    number-of-frames label`.

    The video is divided into num_segments segments of equal length, and the stack has new_length frames in a row from
    each: from a random place in TRAIN, from the middle in TEST. A frame of RGB has three channels, or one with
    grayscale; a frame of FLOW has two, from a file of x and a file of y. A mirrored flow runs the other way: with
    transform_param.is_flow, x becomes 255 - x.

    With `use_image` the first array is a clip (channels, new_length, h, w), as in C3D. Its frames are sampling_rate
    apart and begin with the one that the list names. With use_temporal_jitter the list has the number of frames
    instead, and the clip begins at random in TRAIN, with frame 1 in TEST (where C3D asks for frame 0, which its folders
    do not have).
    """

    field = "video_data_param"

    def __init__(self, message: proto.LayerParameter, request: Request):
        super().__init__(message, request)
        param = message.video_data_param
        _check(param, request.where)
        if param.HasField("use_image") and not param.use_image:
            raise ConfigError(
                "VideoData reads no video files: with use_image: true it reads folders of frames, as `engine "
                "convert_video` makes them, and a list of lines `folder first-frame label`",
                request.where,
            )
        self._param, self._training = param, request.phase == proto.TRAIN
        self._clips = param.use_image
        self._transform = message.transform_param
        self._transformer = Transformer(self._transform, request.phase, request.where, ("is_flow",))
        if self._clips:
            self._transformer.repeat_mean(_channels(message, request.where), param.new_length, request.where)
        self.name = request.path(param.source)
        self._place = f"{request.where}: {self.name}" if request.where else self.name
        if message.transform_param.is_flow and message.transform_param.mean_file:
            raise ConfigError("transform_param: is_flow takes mean_value, and no mean_file", request.where)
        self._flow = param.modality == param.FLOW
        self._color = _color(message, request.where)
        self._pattern = param.name_pattern or (_FLOW if self._flow else _RGB)
        self._videos = _read_videos(self.name, param, request.where)
        self.size = len(self._videos)
        self.shuffle = param.shuffle
        self.owners = request.owners(param.source)
        self.first = random_first(param.rand_skip, request)
        self.shapes = (self._first_stack(), ())

    def _first_stack(self) -> Shape:
        shapes: list[Shape] = []
        self.read(0, 0, lambda video, label, random: shapes.append(self._transformer.shape(self._stack(video, None))))
        return self._clip_shape(shapes[0]) if self._clips else shapes[0]

    def _clip_shape(self, stack: Shape) -> Shape:
        length = self._param.new_length
        return (stack[0] // length, length, *stack[1:])

    def fetch(self, index: int) -> tuple[str, Video]:
        return self._videos[index].folder, self._videos[index]

    def decode(self, fetched: Video) -> tuple[Video, int]:
        """Returns (the video, its label). load() reads the frames, once it has drawn which."""
        return fetched, fetched.label

    def load(self, sample: Sample, out: Sequence[np.ndarray]) -> str:
        def use(video: Video, label: int, random: KeyedRandom) -> None:
            stack = self._stack(video, random if self._training else None)
            frames = np.empty_like(out[0]).reshape(-1, *out[0].shape[-2:]) if self._clips else out[0]
            cut = self._transformer.apply(stack, random, frames)
            if cut.mirrored and self._flow and self._transform.is_flow:
                mean = np.resize(self._transform.mean_value or [0.0], len(frames))[::2, None, None]
                # value becomes 255 - value; the frames hold (value - mean) * scale already
                frames[::2] = (255 - 2 * mean) * self._transform.scale - frames[::2]
            if self._clips:
                out[0][...] = frames.reshape(self._param.new_length, -1, *frames.shape[1:]).swapaxes(0, 1)
            out[1][...] = label

        return self.read(sample.epoch, sample.index, use)

    def _stack(self, video: Video, random: KeyedRandom | None) -> np.ndarray:
        """Reads a sample's frames, side by side as channels: (h, w, channels).

        Args:
            random: draws which frames; None takes those of phase TEST.

        Raises ImageError if the video is too short or a frame cannot be decoded, DataError if one cannot be read.
        """
        numbers = self._clip(video, random) if self._clips else self._snippets(video, random)
        planes = [self._frame(os.path.join(video.folder, name)) for each in numbers for name in self._names(each)]
        return np.concatenate(planes, axis=2)

    def _clip(self, video: Video, random: KeyedRandom | None) -> Sequence[int]:
        """Returns the numbers of a clip's frames. Raises ImageError if the video is too short."""
        rate = self._param.sampling_rate
        covered, begin = self._param.new_length * rate, video.frames
        if self._param.use_temporal_jitter:
            if video.frames < covered:
                raise ImageError(f"it has {video.frames} frames, fewer than new_length x sampling_rate, {covered}")
            begin = random.integer(1, video.frames - covered + 1) if random else 1
        return range(begin, begin + covered, rate)

    def _snippets(self, video: Video, random: KeyedRandom | None) -> Sequence[int]:
        """Returns the numbers of a stack's frames. Raises ImageError if the video is too short."""
        length, segments = self._param.new_length, self._param.num_segments
        if video.frames < length:
            raise ImageError(f"it has {video.frames} frames, fewer than new_length {length}")
        each = video.frames // segments  # frames of a segment
        numbers = []
        for segment in range(segments):
            spare = each - length
            if spare < 0:
                begin = min(1, video.frames - length)  # as TSN does, but within the video
            elif random is None:
                begin = (spare + 1) // 2 + segment * each
            else:
                begin = random.integer(0, spare) + segment * each
            numbers += range(begin + 1, begin + length + 1)
        return numbers

    def _names(self, frame: int) -> list[str]:
        """Returns the names of a frame's files: one, or x's and y's of a flow."""
        named = _NUMBER.sub(lambda match: f"{frame:{match[1] or ''}d}", self._pattern, count=1)
        return [named.replace(_AXIS, axis) for axis in "xy"] if self._flow else [named]

    def _frame(self, path: str) -> np.ndarray:
        content = read_bytes(path, DataError, self._place, MAX_BYTES)
        image = decode_bytes(content, self._color)
        if self._param.new_height:
            image = resized(image, (self._param.new_width, self._param.new_height), Image.Resampling.BILINEAR)
        return as_array(image)

    @classmethod
    def batch_size(cls, message: proto.LayerParameter, where: str | None) -> int:
        """Returns the layer's batch_size, also of SSD's layers of this type, which read cameras and video files and
        have it in data_param."""
        if not message.video_data_param.batch_size and message.data_param.batch_size:
            return message.data_param.batch_size
        return super().batch_size(message, where)

    @classmethod
    def shapes_without_data(cls, message: proto.LayerParameter, where: str | None) -> tuple[Shape, ...]:
        param = message.video_data_param
        if not param.source:  # a layer of SSD
            return picture_shape(message, where), ()
        _check(param, where)
        crop_h, crop_w = crop_shape(message.transform_param, where)
        height, width = crop_h or param.new_height, crop_w or param.new_width
        if not height:
            raise ConfigError(f"the size of the frames is unknown: source {param.source} is not there", where)
        each = _channels(message, where)
        if param.HasField("use_image"):
            return (each, param.new_length, height, width), ()
        return (each * param.new_length * param.num_segments, height, width), ()


def _check(param: proto.VideoDataParameter, where: str | None) -> None:
    """Raises ConfigError for parameters that cannot be used."""
    if not param.source:
        raise ConfigError(
            "VideoData reads lists of frames: set video_data_param.source to a list of lines `folder frames label`; "
            "video files and cameras are not read",
            where,
        )
    if param.HasField("use_image"):
        _check_clips(param, where)
    if not 1 <= param.new_length * param.num_segments <= MAX_FRAMES:
        raise ConfigError(
            f"video_data_param: expected 1 to {MAX_FRAMES} frames, got num_segments {param.num_segments} x new_length "
            f"{param.new_length}",
            where,
        )
    if bool(param.new_height) != bool(param.new_width):
        raise ConfigError(
            f"new_height and new_width need each other; got {param.new_height} and {param.new_width}", where
        )
    if param.new_height:
        check_size(param.new_height, param.new_width, "new_height and new_width", where)
    if param.encoded:
        raise ConfigError("video_data_param.encoded is not supported: frames are image files", where)
    pattern = param.name_pattern or (_FLOW if param.modality == param.FLOW else _RGB)
    if len(_NUMBER.findall(pattern)) != 1 or (_AXIS in pattern) != (param.modality == param.FLOW):
        wanted = _FLOW if param.modality == param.FLOW else _RGB
        raise ConfigError(f"video_data_param.name_pattern: expected one such as {wanted}, got {pattern!r}", where)


def _check_clips(param: proto.VideoDataParameter, where: str | None) -> None:
    """Raises ConfigError for parameters that C3D's clips do not have."""
    if not param.HasField("new_length") or param.num_segments != 1 or not 1 <= param.sampling_rate <= MAX_FRAMES:
        raise ConfigError(
            f"video_data_param: C3D's clips take a new_length, num_segments 1 and a sampling_rate of 1 to {MAX_FRAMES}",
            where,
        )


def _color(message: proto.LayerParameter, where: str | None) -> str:
    """Returns the mode that frames are decoded to. Raises ConfigError for force_color of a flow."""
    param, forced = message.video_data_param, forced_color(message.transform_param, where)
    if param.modality == param.FLOW:
        if forced == COLOR:
            raise ConfigError("transform_param.force_color: a picture of a flow, x or y, has one channel", where)
        return GRAY
    return forced or (GRAY if param.grayscale else COLOR)


def _channels(message: proto.LayerParameter, where: str | None) -> int:
    """Returns the number of channels of a frame. Raises ConfigError."""
    param = message.video_data_param
    return (2 if param.modality == param.FLOW else 1) * len(_color(message, where))


def _read_videos(path: str, param: proto.VideoDataParameter, where: str | None) -> list[Video]:
    """Reads the list. Raises DataError, with the number of the line that is wrong."""
    videos = []
    is_first = param.use_image and not param.use_temporal_jitter
    wanted = f"folder {'first-frame' if is_first else 'frames'} label"
    text = read_text(path, where, f"a text file of lines `{wanted}`")
    for line_number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        words = line.strip().rsplit(None, 2)
        frames = whole(words[-2], int(not is_first), 2**31 - 1) if len(words) == 3 else None
        label = whole(words[-1], -(2**31), 2**31 - 1)
        if frames is None or label is None or "\0" in line:
            raise DataError(f"expected `{wanted}`; got {line!r}", f"{path}:{line_number}")
        videos.append(Video(param.root_folder + words[0], frames, label))
    if not videos:
        raise DataError(f"{path} has no lines in it", where)
    return videos
