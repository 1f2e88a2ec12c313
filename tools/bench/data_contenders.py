"""The contenders of tools/bench/data.py: ways of turning JPEGs into a net's input, each run in a process of its own, by
an interpreter that has the packages that it needs.

A contender is a function that prepares all and returns another one, which does a pass over all pictures. If a package
cannot be imported, the process ends.
"""

import math
import random
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

ENGINE, TWO, BASELINE = "engine", "engine, 2 threads", "engine, baseline"
# The contenders of --sources: name -> the source's name in the folder.
SOURCES = {
    **{"LMDB": "lmdb", "LevelDB": "leveldb", "folder": "folder", "zip": "x.zip", "tar": "x.tar", "shards": "s-*.tar"},
    **{"TFRecord": "x.tfrecord", "RecordIO": "x.rec"},
}
SIZE, MEAN, SCALE = 224, (104.0, 117.0, 123.0), 0.0078125
DATA = """
transform_param {{ force_color: true crop_size: 224 mirror: true scale: 0.0078125
  mean_value: 104 mean_value: 117 mean_value: 123
  random_aspect_ratio_param {{ min_area_ratio: 0.08 max_area_ratio: 1 aspect_ratio_change: 0.75
    resize_param {{ interp_mode: {filter} }} }} }}
data_param {{ source: "{source}" batch_size: 25 shuffle: true }}
"""


def pictures(path: Path) -> Iterator[bytes]:
    """Yields the JPEGs of a folder or a zip, in the order of their names."""
    if path.is_dir():
        yield from (file.read_bytes() for file in sorted(path.rglob("*")) if file.suffix.lower() in (".jpg", ".jpeg"))
        return
    with zipfile.ZipFile(path) as archive:
        for name in sorted(archive.namelist()):
            if name.lower().endswith((".jpg", ".jpeg")):
                yield archive.read(name)


def random_patch(width: int, height: int, dice: random.Random) -> tuple[int, int, int, int]:
    """Returns left, top, width, height of a patch, as random_aspect_ratio_param draws it."""
    for _ in range(10):
        side, stretch = math.sqrt(width * height * dice.uniform(0.08, 1)), dice.uniform(0.75, 1 / 0.75)
        w, h = int(side / stretch), int(side * stretch)
        if dice.random() < 0.5:
            w, h = h, w
        if 0 < w <= width and 0 < h <= height:
            return dice.randint(0, width - w), dice.randint(0, height - h), w, h
    return 0, 0, width, height


def engine(files: list[bytes], source: Path, kind: str, threads: int) -> Callable[[], None]:
    from google.protobuf import text_format

    from engine import proto
    from engine.data import open_data

    layer = proto.LayerParameter(name="data", type="Data")
    text_format.Parse(DATA.format(filter=kind, source=source), layer)
    data = open_data(layer, proto.TRAIN)

    def go() -> None:
        with data.epoch(25, threads=threads) as batches:  # nothing is decoded outside of this block
            for _ in batches:
                pass

    return go


def stored_bytes(source: Path) -> Callable[[], None]:
    """Reads all items of a source as they are stored, in a random order."""
    from engine.data.registry import open_source

    opened = open_source(str(source), None, True)
    order = random.Random(1).sample(range(len(opened)), len(opened))

    def go() -> None:
        for _ in range(20):  # one pass takes a few milliseconds
            for index in order:
                opened.item(index)

    return go


def by_arrays(files: list[bytes], decode_and_resize: Callable, channels: slice) -> Callable[[], None]:
    """Mirrors, subtracts the mean and scales with NumPy. decode_and_resize: returns bytes (224, 224, 3) for the data of
    a picture and a random.Random. channels: a slice that puts them into the order blue, green, red."""
    import numpy as np

    out = np.empty((3, SIZE, SIZE), np.float32)
    mean = np.array(MEAN, np.float32).reshape(3, 1, 1)
    dice = random.Random(1)

    def go() -> None:
        for data in files:
            pixels = decode_and_resize(data, dice)[:, :, channels]
            if dice.random() < 0.5:
                pixels = pixels[:, ::-1]
            np.subtract(pixels.transpose(2, 0, 1), mean, out=out)
            np.multiply(out, np.float32(SCALE), out=out)

    return go


def pillow(files: list[bytes], kind: str) -> Callable[[], None]:
    import io

    import numpy as np
    from PIL import Image

    resample = {"CUBIC": Image.Resampling.BICUBIC, "LINEAR": Image.Resampling.BILINEAR}[kind]

    def get(data: bytes, dice: random.Random):
        image = Image.open(io.BytesIO(data)).convert("RGB")
        left, top, w, h = random_patch(*image.size, dice)
        return np.asarray(image.resize((SIZE, SIZE), resample, (left, top, left + w, top + h)))

    return by_arrays(files, get, slice(None, None, -1))


def opencv(files: list[bytes], kind: str, decoder: str) -> Callable[[], None]:
    import cv2
    import numpy as np

    cv2.setNumThreads(1)
    how = {"CUBIC": cv2.INTER_CUBIC, "LINEAR": cv2.INTER_LINEAR}[kind]
    if decoder == "OpenCV":

        def decode(data: bytes):
            return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    else:
        import simplejpeg

        least = {"min_height": SIZE, "min_width": SIZE} if "DCT" in decoder else {}

        def decode(data: bytes):
            return simplejpeg.decode_jpeg(data, "BGR", **least)

    def get(data: bytes, dice: random.Random):
        image = decode(data)
        left, top, w, h = random_patch(image.shape[1], image.shape[0], dice)
        return cv2.resize(image[top : top + h, left : left + w], (SIZE, SIZE), interpolation=how)

    return by_arrays(files, get, slice(None))


def torchvision(files: list[bytes], kind: str) -> Callable[[], None]:
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.v2 import functional

    torch.set_num_threads(1)
    how = {"CUBIC": InterpolationMode.BICUBIC, "LINEAR": InterpolationMode.BILINEAR}[kind]
    mean, deviation = [value / 255 for value in reversed(MEAN)], [1 / 255 / SCALE] * 3
    raw, dice = [torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in files], random.Random(1)

    def go() -> None:
        for data in raw:
            image = decode_jpeg(data, ImageReadMode.RGB)
            left, top, w, h = random_patch(image.shape[2], image.shape[1], dice)
            image = functional.resized_crop(image, top, left, h, w, [SIZE, SIZE], how, antialias=True)
            if dice.random() < 0.5:
                image = functional.horizontal_flip(image)
            functional.normalize(functional.to_dtype(image, torch.float32, scale=True), mean, deviation)

    return go


def dali(files: list[bytes], kind: str) -> Callable[[], None]:
    import numpy as np
    from nvidia.dali import fn, pipeline_def, types

    how = {"CUBIC": types.INTERP_CUBIC, "LINEAR": types.INTERP_LINEAR}[kind]
    arrays = [np.frombuffer(data, np.uint8) for data in files]

    def batches() -> Iterator[list]:
        at = 0
        while True:
            yield [arrays[(at + k) % len(arrays)] for k in range(25)]
            at += 25

    @pipeline_def(batch_size=25, num_threads=1, device_id=None, prefetch_queue_depth=1)
    def work():
        data = fn.external_source(source=batches(), dtype=types.UINT8)
        image = fn.decoders.image_random_crop(data, random_aspect_ratio=[0.56, 1.78], random_area=[0.08, 1])
        image = fn.resize(image, size=[SIZE, SIZE], interp_type=how, antialias=True)
        mirror = fn.random.coin_flip()
        mean, deviation = list(reversed(MEAN)), [1 / SCALE] * 3
        return fn.crop_mirror_normalize(
            image, dtype=types.FLOAT, output_layout="CHW", mean=mean, std=deviation, mirror=mirror
        )

    pipeline = work()
    pipeline.build()

    def go() -> None:
        for _ in range(math.ceil(len(files) / 25)):
            pipeline.run()

    return go


def contender(name: str, files: list[bytes], folder: Path, kind: str) -> Callable[[], None]:
    """Returns the function of a contender that does a pass over all pictures."""
    if name in SOURCES:
        source = folder / SOURCES[name]
        return stored_bytes(source) if kind == "bytes" else engine(files, source, kind, 1)
    if name in (ENGINE, BASELINE):
        return engine(files, folder / "lmdb", kind, 1)
    if name == TWO:
        return engine(files, folder / "lmdb", kind, 2)
    if name == "Pillow":
        return pillow(files, kind)
    if name == "torchvision":
        return torchvision(files, kind)
    if name == "DALI":
        return dali(files, kind)
    return opencv(files, kind, name)


def work(name: str, images: Path, folder: Path, kind: str) -> None:
    """Runs as the process of a contender: for each line on stdin it does a pass, and prints processor and elapsed
    seconds."""
    files = list(pictures(images))
    go = contender(name, files, folder, kind)
    go()
    print("ready", flush=True)
    for _ in sys.stdin:
        processor, elapsed = time.process_time(), time.perf_counter()
        go()
        print(time.process_time() - processor, time.perf_counter() - elapsed, flush=True)


if __name__ == "__main__":
    work(sys.argv[2], Path(sys.argv[1]), Path(sys.argv[3]), sys.argv[4])
