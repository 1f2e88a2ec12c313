"""convert_video: turns video files into folders of frames and their list, which are written whole or not at all."""

import errno
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format
from PIL import Image

from engine import proto
from engine.cli import main
from engine.data import open_data, video_file
from engine.data.convert_imageset import Output
from engine.data.convert_video import BY_FOLDER, BY_ORDER, Taken, convert_video
from engine.data.video_file import BadClip, read_frames
from engine.errors import ConfigError, DataError, EngineError
from tests.data.clips import HEIGHT, KINDS, LOSSLESS, RATE, WIDTH, greys, moving_squares, write_clip, write_sound
from tests.data.test_convert_imageset import assert_ended_without_a_trace
from tests.mpi import REPO

pytest.importorskip("av", reason="PyAV is not installed: pip install 'prototxt-engine[video]'")

COUNT = 12
PNG = Output(encode_type="png")


@pytest.fixture
def grey(tmp_path):
    """Makes a lossless clip of 20 frames, whose values are 0, 5, 10 and so on."""
    return write_clip(tmp_path / "grey.mkv", greys(20))


def values(folder: Path) -> list[int]:
    """Returns the grey values of the frames in a folder, in the order of their names, and checks the names."""
    names = sorted(path.name for path in folder.iterdir())
    assert names == [f"image_{number:04d}.png" for number in range(1, len(names) + 1)]
    return [int(np.asarray(Image.open(folder / name)).mean()) for name in names]


def listed(path: Path) -> list[list[str]]:
    """Returns the words of each line of a list, with folders relative to the list's."""
    lines = [line.rsplit(None, 2) for line in path.read_text().splitlines()]
    return [[os.path.relpath(folder, path.parent), frames, label] for folder, frames, label in lines]


def first_batch(text: str, phase: int = proto.TEST):
    layer = proto.LayerParameter(name="data", type="VideoData", top=["data", "label"])
    text_format.Parse(text, layer)
    with open_data(layer, phase).batches(layer.video_data_param.batch_size) as batches:
        return next(batches).arrays["data"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("encode_type", ["jpg", "png"])
def test_frames_are_those_that_were_drawn(kind, encode_type, tmp_path):
    drawn = moving_squares(COUNT)
    clip = write_clip(tmp_path / f"squares.{kind}", drawn)
    done = convert_video([str(clip)], str(tmp_path / "out"), Output(encode_type=encode_type))
    assert done.frames == COUNT and done.sizes == {(WIDTH, HEIGHT): 1}
    assert listed(tmp_path / "out/list.txt") == [["squares", str(COUNT), "0"]]
    names = sorted(path.name for path in (tmp_path / "out/squares").iterdir())
    assert names == [f"image_{number:04d}.{encode_type}" for number in range(1, COUNT + 1)]
    most = 0 if (kind, encode_type) == ("mkv", "png") else 6
    for number, name in enumerate(names):
        found = np.asarray(Image.open(tmp_path / "out/squares" / name)).astype(int)
        errors = [np.abs(found - frame).mean() for frame in drawn]
        assert errors[number] <= most and errors[number] == min(errors)


@pytest.mark.parametrize("grayscale, channels", [(False, 3), (True, 1)])
def test_a_net_reads_the_list(grayscale, channels, tmp_path):
    clips = [str(write_clip(tmp_path / f"{name}.mp4", moving_squares(9))) for name in ("a", "b")]
    convert_video(clips, str(tmp_path / "out"), label=BY_ORDER)
    text = f"""video_data_param {{ source: "{tmp_path}/out/list.txt" modality: RGB new_length: 4 batch_size: 2
        grayscale: {str(grayscale).lower()} }}"""
    stacks, labels = first_batch(text)
    assert stacks.shape == (2, 4 * channels, HEIGHT, WIDTH) and labels.tolist() == [0, 1]
    begin = (9 - 4 + 1) // 2  # first frame of the snippet, which lies in the middle of the video
    drawn = moving_squares(9)[begin][:, :, ::-1].transpose(2, 0, 1)
    if not grayscale:
        assert np.abs(stacks[0, :3] - drawn).mean() < 6


def test_snippets_longer_than_their_part_of_the_video(grey, tmp_path):
    convert_video([str(grey)], str(tmp_path / "out"), PNG, Taken(max_frames=4))

    def stack(segments, length):
        text = f"""video_data_param {{ source: "{tmp_path}/out/list.txt" batch_size: 1 grayscale: true modality: RGB
            name_pattern: "image_%04d.png" num_segments: {segments} new_length: {length} }}"""
        return first_batch(text)[0].mean((0, 2, 3)).tolist()

    assert stack(2, 3) == [5, 10, 15] * 2
    assert stack(2, 4) == [0, 5, 10, 15] * 2
    with pytest.raises(DataError, match=r"list.txt: key '.*grey': it has 4 frames, fewer than new_length 5"):
        stack(1, 5)


@pytest.mark.parametrize(
    "taken, expected",
    [
        (Taken(), range(20)),
        (Taken(every=6), [0, 6, 12, 18]),
        (Taken(max_frames=3), [0, 1, 2]),
        (Taken(every=7, max_frames=2), [0, 7]),
        (Taken(fps=5), [0, 5, 10, 15]),
        (Taken(fps=10), [0, 3, 5, 8, 10, 13, 15, 18]),
        (Taken(fps=1000), range(20)),
        (Taken(max_frames=100), range(20)),
    ],
)
def test_which_frames_are_taken(taken, expected, grey, tmp_path):
    done = convert_video([str(grey)], str(tmp_path / "out"), PNG, taken)
    assert values(tmp_path / "out/grey") == [5 * number for number in expected]
    assert done.frames == len(expected) and listed(tmp_path / "out/list.txt") == [["grey", str(len(expected)), "0"]]


def test_frames_that_follow_each_other_at_different_times(tmp_path):
    times = [0, 0.05, 0.06, 0.07, 0.5, 0.55, 0.95, 1.25, 1.26]
    clip = write_clip(tmp_path / "a.mkv", greys(len(times)), times)
    convert_video([str(clip)], str(tmp_path / "out"), PNG, Taken(fps=5))
    assert values(tmp_path / "out/a") == [5 * number for number in (0, 4, 6, 7)]  # no frame is taken twice


def test_frames_without_times():
    class Timeless:
        time = None

    with pytest.raises(BadClip, match=r"x\.avi: its frames have no times: take every N-th instead of so many a second"):
        list(Taken(fps=2).of(iter([Timeless()]), "x.avi"))


def test_pieces(grey, tmp_path):
    done = convert_video([str(grey)], str(tmp_path / "out"), PNG, Taken(piece=6), val_fraction=0.4, label=7)
    assert listed(tmp_path / "out/train.txt") == [["grey/0001", "6", "7"], ["grey/0002", "6", "7"]]
    assert listed(tmp_path / "out/val.txt") == [["grey/0003", "6", "7"]]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["grey", "train.txt", "val.txt"]
    assert sorted(path.name for path in (tmp_path / "out/grey").iterdir()) == ["0001", "0002", "0003"]
    assert values(tmp_path / "out/grey/0003") == [5 * number for number in range(12, 18)]
    assert done.frames == 18 and done.lists == {"train.txt": 2, "val.txt": 1}


def test_a_clip_shorter_than_a_piece(grey, tmp_path):
    with pytest.raises(DataError, match=r"grey\.mkv: it has 20 frames, fewer than a piece of 21"):
        convert_video([str(grey)], str(tmp_path / "out"), taken=Taken(piece=21))
    assert not (tmp_path / "out").exists()


def test_labels_of_folders(tmp_path):
    clips = []
    for name in ("walk/a", "run/a", "run/b"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        clips.append(str(write_clip(tmp_path / f"{name}.mkv", greys(2))))
    done = convert_video(clips, str(tmp_path / "out"), label=BY_FOLDER)
    assert listed(tmp_path / "out/list.txt") == [["walk/a", "2", "1"], ["run/a", "2", "0"], ["run/b", "2", "0"]]
    assert (tmp_path / "out/labels.txt").read_text() == "run\nwalk\n"
    assert done.table() == ["class 0 run: 2 clips", "class 1 walk: 1 clips"]
    with pytest.raises(DataError, match=r"run/a\.mkv: it has the same name as .*walk/a\.mkv; rename one"):
        convert_video(clips, str(tmp_path / "other"))


def test_sizes_and_channels(tmp_path):
    clip = write_clip(tmp_path / "a.mkv", moving_squares(2))
    convert_video([str(clip)], str(tmp_path / "out"), Output(height=20, width=30, gray=True, encode_type="png"))
    with Image.open(tmp_path / "out/a/image_0002.png") as picture:
        assert (picture.size, picture.mode) == ((30, 20), "L")
    convert_video([str(clip)], str(tmp_path / "shorter"), Output(shorter_side=24))
    with Image.open(tmp_path / "shorter/a/image_0001.jpg") as picture:
        assert picture.size == (32, 24)


def test_a_camera_that_was_held_upright(tmp_path):
    """Phones store how they were held in the track's matrix, here a quarter turn, by which frames must be turned."""
    clip = write_clip(tmp_path / "a.mov", moving_squares(1))
    content = bytearray(clip.read_bytes())
    place = content.index(b"tkhd") + 4 + 40  # in version 0, times, numbers and the volume come before the matrix
    assert struct.unpack_from(">9i", content, place) == (1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
    struct.pack_into(">9i", content, place, 0, 1 << 16, 0, -1 << 16, 0, 0, HEIGHT << 16, 0, 1 << 30)
    clip.write_bytes(content)
    (frame,) = read_frames(str(clip))
    turned = np.rot90(moving_squares(1)[0], -1)  # clockwise
    assert np.abs(frame.pixels()[:, :, ::-1].astype(int) - turned).mean() < 6


@pytest.mark.parametrize("first", ["sound", "pictures"])
@pytest.mark.parametrize("codec, form", [LOSSLESS, KINDS["mp4"]])
def test_sound_beside_the_pictures(first, codec, form, tmp_path):
    """The decoder holds H.264's last frames back until it is told that there are no more."""
    av = pytest.importorskip("av")
    with av.open(str(tmp_path / "a.mkv"), "w") as file:
        if first == "sound":
            sound, pictures = file.add_stream("pcm_s16le", rate=8000), file.add_stream(codec, rate=RATE)
        else:
            pictures, sound = file.add_stream(codec, rate=RATE), file.add_stream("pcm_s16le", rate=8000)
        sound.layout, pictures.height, pictures.width, pictures.pix_fmt = "mono", 16, 16, form
        for number, pixels in enumerate(greys(20)):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 320), np.int16), "s16", "mono")
            frame.sample_rate, frame.pts = 8000, 320 * number
            file.mux(sound.encode(frame))
            file.mux(pictures.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")))
        file.mux(sound.encode(None))
        file.mux(pictures.encode(None))
    found = [int(frame.pixels()[0, 0, 0]) for frame in read_frames(str(tmp_path / "a.mkv"))]
    assert found == pytest.approx([5 * number for number in range(20)], abs=4)


def test_a_cover_is_no_clip(tmp_path):
    av = pytest.importorskip("av")
    with av.open(str(tmp_path / "a.mp4"), "w") as file:
        cover, pictures = file.add_stream("mjpeg", rate=RATE), file.add_stream("libx264", rate=RATE)
        cover.disposition = av.stream.Disposition.attached_pic.value
        for stream, form, side in ((cover, "yuvj420p", 16), (pictures, "yuv420p", 32)):
            stream.width, stream.height, stream.pix_fmt = side, side, form
        for stream, count in ((cover, 1), (pictures, 4)):
            for pixels in greys(count, stream.height, stream.width):
                file.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")))
            file.mux(stream.encode(None))
    assert [frame.pixels().shape for frame in read_frames(str(tmp_path / "a.mp4"))] == [(32, 32, 3)] * 4


# What is wrong with clips


def no_clip(path: Path, content: bytes, said: str) -> None:
    """Writes a file of this content, and checks that it is refused in one line and that nothing is left behind."""
    path.write_bytes(content)
    with pytest.raises(BadClip, match=said) as caught:
        convert_video([str(path)], str(path.parent / "out"))
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)
    assert not [each for each in path.parent.iterdir() if "out" in each.name]


RANDOM = pytest.param(np.random.default_rng(7).bytes(5000), id="random")


@pytest.mark.parametrize("content", [b"", b"\0", b"hello", bytes(5000), RANDOM, b"\x89PNG\r\n\x1a\n"])
def test_files_that_are_no_videos(content, tmp_path):
    no_clip(tmp_path / "x.mp4", content, "it is no video that can be decoded: .*; expected MP4, MOV, MKV, .* or GIF")


@pytest.mark.parametrize(
    "kind, options, said",
    [
        ("mp4", {}, "it is no video|there is no video stream"),  # its table comes last
        ("mp4", {"movflags": "faststart"}, r"behind frame \d+: "),
        ("avi", {}, r"behind frame \d+: |it is no video"),
        ("mkv", {}, r"behind frame \d+: its header says 1\.6 s, 0\.\d+ s are there; --max_frames takes what is b"),
        ("webm", {}, r"behind frame \d+: its header says 1\.6 s"),
        ("mpg", {}, r"behind frame \d+: a part of the file is missing"),
    ],
)
def test_clips_that_are_cut_off(kind, options, said, tmp_path):
    content = write_clip(tmp_path / f"whole.{kind}", moving_squares(40), container=options).read_bytes()
    no_clip(tmp_path / f"x.{kind}", content[: len(content) * 6 // 10], said)


@pytest.mark.parametrize("kind", ["mp4", "mkv", "mpg"])
def test_clips_that_are_damaged_in_the_middle(kind, tmp_path):
    content = bytearray(write_clip(tmp_path / f"whole.{kind}", moving_squares(40)).read_bytes())
    place = len(content) * 4 // 10
    content[place : place + 200] = np.random.RandomState(1).bytes(200)
    no_clip(
        tmp_path / f"x.{kind}", content, r"x\.\w+: it is damaged, or has been cut off, behind frame \d+: .*--max_frames"
    )
    done = convert_video([str(tmp_path / f"x.{kind}")], str(tmp_path / "begin"), PNG, Taken(max_frames=3))
    assert done.frames == 3


def test_bad_clips_can_be_left_out(tmp_path, capfd):
    good = write_clip(tmp_path / "good.mkv", greys(3))
    (tmp_path / "bad.mp4").write_bytes(bytes(100))
    (tmp_path / "cut.mkv").write_bytes(write_clip(tmp_path / "long.mkv", greys(40)).read_bytes()[:-1500])
    clips = [str(tmp_path / name) for name in ("bad.mp4", "good.mkv", "cut.mkv")]
    assert main(["convert_video", *clips, str(tmp_path / "out"), "--skip_bad_clips", "--label", "order"]) == 0
    said = capfd.readouterr().err
    assert f"2 clips cannot be decoded to their end and are left out, the first: {clips[0]}: it is no video" in said
    assert "Wrote 3 frames of 1 clips" in said and "list.txt lists 1 folders of frames" in said
    assert listed(tmp_path / "out/list.txt") == [["good", "3", "1"]]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["good", "list.txt"]
    good.unlink()
    with pytest.raises(DataError, match=r"none of 1 clips can be decoded, .*bad\.mp4: it is no video"):
        convert_video(clips[:1], str(tmp_path / "none"), skip_bad_clips=True)
    # a missing file is a mistake of the caller
    with pytest.raises(DataError, match=r"good\.mkv: cannot be read: No such file"):
        convert_video(clips, str(tmp_path / "none"), skip_bad_clips=True)
    assert not (tmp_path / "none").exists()


def test_a_file_without_pictures(tmp_path):
    clip = write_sound(tmp_path / "sound.mkv")
    with pytest.raises(BadClip, match=r"sound\.mkv: it has no pictures: there is no video stream in it"):
        convert_video([str(clip)], str(tmp_path / "out"))


def test_only_regular_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.mp4")
    (tmp_path / "folder.mp4").mkdir()
    for name in ("pipe.mp4", "folder.mp4"):
        with pytest.raises(DataError, match=rf"{name}: cannot be read"):
            convert_video([str(tmp_path / name)], str(tmp_path / "out"))
    with pytest.raises(DataError, match=r"http://localhost/x\.mp4: cannot be read: No such file"):
        convert_video(["http://localhost/x.mp4"], str(tmp_path / "out"))


LISTS = {
    "x.m3u8": "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{clip}\n#EXT-X-ENDLIST\n",
    "x.ffconcat": "ffconcat version 1.0\nfile '{clip}'\n",
    "x.sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n",
    "x.mpd": '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011"><Period><AdaptationSet>'
    "<Representation><BaseURL>{clip}</BaseURL></Representation></AdaptationSet></Period></MPD>",
    "image_%04d.png": "",
}


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("renamed", [False, True])
def test_a_list_of_other_files_is_refused(name, renamed, tmp_path):
    clip = write_clip(tmp_path / "clip.mp4", moving_squares(3))
    Image.new("RGB", (16, 16)).save(tmp_path / "image_0001.png")
    content = LISTS[name].format(clip=clip).encode()
    no_clip(tmp_path / ("x.mp4" if renamed else name), content, "it is no video that can be decoded")


@pytest.mark.parametrize("name", ["x.m3u8", "x.ffconcat"])
def test_a_format_that_names_another_file_does_not_get_it(name, tmp_path, monkeypatch):
    """This is the second safeguard, for a format that the list of formats wrongly allows."""
    monkeypatch.setattr(video_file, "FORMATS", (*video_file.FORMATS, "hls", "concat"))
    clip = write_clip(tmp_path / "clip.ts" if name == "x.m3u8" else tmp_path / "clip.mp4", moving_squares(3))
    no_clip(tmp_path / name, LISTS[name].format(clip=clip.name).encode(), "it is no video that can be decoded: ")


def test_frames_that_are_too_large(tmp_path, monkeypatch):
    clip = write_clip(tmp_path / "a.avi", moving_squares(2), encoder=LOSSLESS)
    content = bytearray(clip.read_bytes())
    # the width and height of BITMAPINFOHEADER
    struct.pack_into("<ii", content, content.index(b"strf") + 8 + 4, 70_000, 20)
    no_clip(tmp_path / "x.avi", content, "its frames have 70000 x 20 pixels; at most 65500 on a side")
    # the limit for decoded frames, whose size no header states
    monkeypatch.setattr(video_file, "MAX_PIXELS", HEIGHT * WIDTH - 1)
    no_clip(tmp_path / "x.avi", clip.read_bytes(), "it is no video that can be decoded")


def test_frames_that_become_too_large(tmp_path):
    clip = write_clip(tmp_path / "a.mkv", [np.zeros((2, 500, 3), np.uint8)])
    with pytest.raises(BadClip, match=r"a\.mkv: a frame of it cannot be written: it would be resized to .* at most"):
        convert_video([str(clip)], str(tmp_path / "out"), Output(shorter_side=20_000))


def test_frames_of_several_sizes(tmp_path, capfd):
    av = pytest.importorskip("av")
    with av.open(str(tmp_path / "a.avi"), "w") as file:
        streams = [file.add_stream("mjpeg", rate=RATE)]
        encoders = []
        for side in (32, 48):
            encoder = av.CodecContext.create("mjpeg", "w")
            encoder.width = encoder.height = side
            encoder.pix_fmt, encoder.time_base = "yuvj420p", Fraction(1, RATE)
            encoders.append(encoder)
        streams[0].width = streams[0].height = 32
        streams[0].pix_fmt = "yuvj420p"
        for number, encoder in enumerate(encoders):
            frame = av.VideoFrame.from_ndarray(np.zeros((encoder.height, encoder.width, 3), np.uint8), "rgb24")
            frame.pts = number
            for packet in [*encoder.encode(frame), *encoder.encode(None)]:
                packet.stream, packet.pts, packet.dts = streams[0], number, number
                file.mux(packet)
    with pytest.raises(BadClip, match="its frames have 32 x 32 and then 48 x 48 pixels; --resize_height and"):
        convert_video([str(tmp_path / "a.avi")], str(tmp_path / "out"))
    assert convert_video([str(tmp_path / "a.avi")], str(tmp_path / "out"), Output(height=8, width=8)).frames == 2
    clips = [str(write_clip(tmp_path / f"{side}.mkv", greys(1, side, side))) for side in (16, 32)]
    assert main(["convert_video", *clips, str(tmp_path / "two")]) == 0
    assert "The frames of clips have 2 sizes, 16 x 16, 32 x 32: a VideoData layer needs" in capfd.readouterr().err


def test_a_fault_of_the_decoder_is_one_line(tmp_path):
    program = f"""
import ctypes, resource, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
from engine.cli import main
from engine.data import video_file
video_file._open = lambda *_: ctypes.string_at(0)
sys.exit(main(["convert_video", {str(tmp_path / "x.mp4")!r}, {str(tmp_path / "out")!r}]))
"""
    (tmp_path / "x.mp4").write_bytes(b"x")
    done = subprocess.run([sys.executable, "-c", program], cwd=REPO, capture_output=True, text=True, timeout=60)
    line = f"engine: {tmp_path}/x.mp4: the file is damaged, or has been cut off; copy it again\n"
    assert (done.returncode, done.stderr) == (1, line)
    assert not (tmp_path / "out").exists()


# What is wrong with what is asked for


def test_what_is_there_stays(grey, tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    with pytest.raises(DataError, match="out exists already; remove it, or choose another name"):
        convert_video([str(grey)], str(tmp_path / "out"))
    assert not [*(tmp_path / "out").iterdir()]
    monkeypatch.chdir(tmp_path / "out")
    with pytest.raises(DataError, match="out exists already"):
        convert_video([str(grey)], "")


def test_the_folder_appears_when_it_is_complete(tmp_path):
    clip = write_clip(tmp_path / "a.mkv", greys(40))
    seen = []

    def progress(frames):
        seen.append(frames)
        assert not (tmp_path / "out").exists()

    convert_video([str(clip)], str(tmp_path / "out"), progress=progress)
    assert seen == [16, 32, 40]

    def stop(frames):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_video([str(clip)], str(tmp_path / "other"), progress=stop)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.mkv", "out"]


def test_an_interrupt_does_not_wait_for_the_end_of_clips(tmp_path):
    clip = write_clip(tmp_path / "a.mkv", greys(50) * 20)
    seen = []

    def progress(frames):
        seen.append(frames)
        if len(seen) == 1:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(0.02)

    with pytest.raises(KeyboardInterrupt):
        convert_video([str(clip)], str(tmp_path / "out"), progress=progress)
    assert seen[-1] < 500
    assert [path.name for path in tmp_path.iterdir()] == ["a.mkv"]


def test_a_signal_that_ends_it_leaves_nothing(grey, tmp_path):
    (tmp_path / "out").mkdir()
    arguments = f"[{str(grey)!r}], {str(tmp_path / 'out/frames')!r}"
    assert_ended_without_a_trace(tmp_path / "out", signal.SIGTERM, "convert_video", arguments)


def test_work_of_another_process_stays(grey, tmp_path):
    """The partial folder belongs to a process in another container that has the same number as this one."""
    other = tmp_path / f".out.{os.getpid()}.partial"
    other.mkdir()
    convert_video([str(grey)], str(tmp_path / "out"))
    assert other.exists() and (tmp_path / "out").exists()


def test_a_full_disk(grey, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(DataError, match=r"out: cannot be written: No space left on device"):
        convert_video([str(grey)], str(tmp_path / "out"))
    assert [path.name for path in tmp_path.iterdir()] == ["grey.mkv"]


@pytest.mark.parametrize("name", ["...mp4", "list.txt.mp4", "train.txt.mp4", "val.txt.mp4"])
def test_clips_whose_names_cannot_be_folders(name, tmp_path):
    with pytest.raises(DataError, match="no folder of frames can have the clip's name; rename it"):
        convert_video([str(tmp_path / name)], str(tmp_path / "out"))


@pytest.mark.parametrize("name", ["a\nb.mkv", "a\x85b.mkv", "a .mkv", os.fsdecode(b"a\xff.mkv"), "a\0b.mkv"])
def test_names_that_no_list_can_hold(name, tmp_path):
    with pytest.raises(DataError, match="a list cannot name it"):
        convert_video([str(tmp_path / name)], str(tmp_path / "out"))


def test_names_with_blanks(tmp_path):
    clip = write_clip(tmp_path / "my holiday 1.mkv", greys(3))
    convert_video([str(clip)], str(tmp_path / "out of it"))
    assert listed(tmp_path / "out of it/list.txt") == [["my holiday 1", "3", "0"]]
    text = f'video_data_param {{ source: "{tmp_path}/out of it/list.txt" modality: RGB new_length: 3 batch_size: 1 }}'
    assert first_batch(text)[0].shape == (1, 9, 16, 16)


@pytest.mark.parametrize(
    "options, said",
    [
        ({"taken": Taken(every=2, fps=5)}, "fps and every exclude each other"),
        ({"taken": Taken(every=0)}, "every: expected 1 to"),
        ({"taken": Taken(fps=float("nan"))}, "fps: expected 0 to 100000, got nan"),
        ({"val_fraction": 0.5}, "val_fraction sets pieces aside: say how long they are"),
        ({"val_fraction": 1.0, "taken": Taken(piece=2)}, "val_fraction: expected 0 to 0.99, got 1"),
        ({"val_fraction": 0.01, "taken": Taken(piece=2)}, r"val_fraction 0\.01 of 10 pieces leaves none for val\.txt"),
        ({"val_fraction": 0.99, "taken": Taken(piece=2)}, r"leaves none for train\.txt"),
        ({"output": Output(height=5)}, "resize_height and resize_width need each other"),
    ],
)
def test_values_that_cannot_be(options, said, grey, tmp_path):
    with pytest.raises((ConfigError, DataError), match=said):
        convert_video([str(grey)], str(tmp_path / "out"), **options)
    assert not (tmp_path / "out").exists()


def test_without_pyav(tmp_path, monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "av", None)
    (tmp_path / "x.mp4").write_bytes(b"x")
    assert main(["convert_video", str(tmp_path / "x.mp4"), str(tmp_path / "out"), "--skip_bad_clips"]) == 1
    said = capfd.readouterr().err
    assert "engine: video files need PyAV, which is not installed: pip install 'prototxt-engine[video]'\n" == said
    with pytest.raises(EngineError, match="need PyAV"):
        next(read_frames(str(tmp_path / "x.mp4")))
