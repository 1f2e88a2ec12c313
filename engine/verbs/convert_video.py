"""Writes the frames of video files to a new FOLDER, and FOLDER/list.txt, which VideoData layers read: a line `folder
frames label` for each clip. Frames of x.mp4 are FOLDER/x/image_0001.jpg and so on; with --piece N every N frames are a
folder and a line of their own. Needs PyAV (pip install prototxt-engine[video]), which brings FFmpeg's decoders: MP4,
MOV, MKV, WebM, AVI, MPEG, Ogg, FLV, WMV and GIF are read.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from engine.verbs.options import above_zero, add_sizes, int32, number, positive

ORDER = 92
SUMMARY = "make folders of frames, and their list, of video files"
EXAMPLES = [
    "engine convert_video holiday.mp4 frames --shorter_side 256 --fps 10",
    "engine convert_video UCF101/*/*.avi frames --label folder --resize_height 240 --resize_width 320",
    "engine convert_video film.mkv frames --piece 24 --val_fraction 0.2 --encode_type png --max_frames 5000",
]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("clips", nargs="+", metavar="CLIP", help="video files")
    parser.add_argument("folder", metavar="FOLDER", help="the folder to create")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--every", type=positive, default=1, metavar="N", help="take every N-th frame")
    chosen.add_argument(
        "--fps", type=above_zero, default=0.0, metavar="F", help="take F frames a second, or all where there are fewer"
    )
    parser.add_argument(
        "--max_frames", type=positive, default=0, metavar="N", help="take at most N frames of each clip, its first"
    )
    parser.add_argument(
        "--piece",
        type=positive,
        default=0,
        metavar="N",
        help="cut clips into pieces of N frames; what is left at the end is left out",
    )
    parser.add_argument(
        "--val_fraction",
        type=number,
        default=0.0,
        metavar="F",
        help="list the last pieces of each clip, this fraction of them, in val.txt, the others in train.txt",
    )
    parser.add_argument(
        "--label",
        type=_label,
        default=0,
        metavar="N|folder|order",
        help="label of all clips (default: 0); or of each: by the folder that it lies in, numbered in alphabetical "
        "order, or its place on the command line, from 0",
    )
    add_sizes(parser)
    parser.add_argument("--encode_type", choices=["jpg", "png"], default="jpg", help="format of the frames")
    parser.add_argument(
        "--skip_bad_clips", action="store_true", help="leave out clips that cannot be decoded to their end, count them"
    )


def _label(text: str) -> int | str:
    return text if text in ("folder", "order") else int32(text)


def run(options: Namespace) -> int:
    from engine.data.convert_video import Taken, convert_video
    from engine.report.log import log, set_up, warn
    from engine.report.progress import Progress
    from engine.verbs.runtime import asked_output

    set_up()
    with Progress("Converting", line="Wrote {done} frames.") as progress:
        done = convert_video(
            options.clips,
            options.folder,
            asked_output(options),
            Taken(options.every, options.fps, options.max_frames, options.piece),
            label=options.label,
            val_fraction=options.val_fraction,
            skip_bad_clips=options.skip_bad_clips,
            progress=progress.update,
        )
    if done.skipped:
        why = next(iter(done.skipped.values()))
        warn(f"{len(done.skipped)} clips cannot be decoded to their end and are left out, the first: {why}")
    if len(done.sizes) > 1:
        sizes = ", ".join(f"{width} x {height}" for width, height in list(done.sizes)[:3])
        warn(
            f"The frames of clips have {len(done.sizes)} sizes, {sizes}: a VideoData layer needs a crop_size, or its "
            "new_height and new_width"
        )
    for line in done.table():
        log(line)
    log(f"Wrote {done.frames} frames of {len(done.clips)} clips")
    for name, pieces in done.lists.items():
        log(f"{options.folder}/{name} lists {pieces} folders of frames")
    return 0
