"""Makes good inputs of the binary formats, by the libraries that write them. corpus/ holds texts, and what was
found."""

from __future__ import annotations

import io
import math
import struct
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import h5py
import lmdb
import numpy as np
from PIL import Image

from engine import proto, weights
from engine.config import parse_net
from engine.data.example import record, serialise
from engine.exchange.onnx_export import export_onnx
from engine.exchange.torch_file import write_state
from engine.weights.protobuf import fill_blob
from tests.data.clips import KINDS, moving_squares, write_clip

FORMATS = {
    "JPEG": ["RGB", "L", "CMYK"],
    "PNG": ["RGB", "L", "RGBA", "LA", "P", "1", "I;16"],
    "BMP": ["RGB", "L", "P"],
    "GIF": ["P"],
    "TIFF": ["RGB", "L", "CMYK", "F", "I;16"],
    "PPM": ["RGB", "L"],
    "WEBP": ["RGB"],
}


def contents(write: Callable[[Path], object], name: str = "x") -> bytes:
    """Returns what `write` writes to the file that it is given."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        write(path)
        return path.read_bytes()


def pictures() -> list[bytes]:
    pixels = np.random.RandomState(0).randint(0, 255, (12, 17, 3), np.uint8)
    wide = (pixels[:, :, 0].astype(np.uint16) << 8) + pixels[:, :, 1]

    def picture(mode: str) -> Image.Image:
        return Image.fromarray(wide) if mode == "I;16" else Image.fromarray(pixels).convert(mode)

    files = [_saved(picture(mode), name) for name, modes in FORMATS.items() for mode in modes]
    ways = [{"progressive": True}, {"subsampling": 2}, {"restart_marker_blocks": 2}]
    return files + [_saved(picture("RGB"), "JPEG", **way) for way in ways]


def _saved(image: Image.Image, name: str, **options) -> bytes:
    out = io.BytesIO()
    image.save(out, name, **options)
    return out.getvalue()


def datums() -> list[bytes]:
    raw = [
        proto.Datum(channels=3, height=2, width=2, data=bytes(12), label=3),
        proto.Datum(channels=1, height=2, width=2, float_data=[1, 2, 3, 4], label=-1),
    ]
    encoded = [proto.Datum(encoded=True, data=picture, label=1) for picture in pictures()[:6]]
    return [datum.SerializeToString() for datum in raw + encoded]


def annotated() -> proto.AnnotatedDatum:
    """Returns a raw picture with one box."""
    message = proto.AnnotatedDatum(type=0)
    message.datum.CopyFrom(proto.Datum(channels=3, height=12, width=17, data=bytes(12 * 17 * 3)))
    box = message.annotation_group.add(group_label=3).annotation.add(instance_id=1).bbox
    box.xmin, box.ymin, box.xmax, box.ymax, box.difficult = 0.1, 0.2, 0.5, 0.6, True
    return message


def c3d_blob(*shape: int) -> proto.raw.BlobProto:
    """Returns a blob of zeros as Facebook's C3D writes it: fields 1 to 5 are the axes, field 6 the values."""
    values = bytes(4 * math.prod(shape))
    axes = bytes(byte for number, size in enumerate(shape, 1) for byte in (number << 3, size))
    return proto.raw.BlobProto.FromString(axes + bytes([6 << 3 | 2, len(values)]) + values)


def caffemodels() -> list[bytes]:
    """Returns a file in each of Caffe's formats, with few values, since the structure is to be changed and not a
    value."""
    net, v1, c3d, v0 = (proto.raw.NetParameter(name=name) for name in ("n", "v1", "c3d", "v0"))
    for index, shape in enumerate([(2,), (1, 2), (1, 1, 2, 1), ()]):
        fill_blob(net.layer.add(name=f"l{index}", type="X").blobs.add(), np.ones(shape, np.float32))
    legacy = proto.raw.BlobProto(num=1, channels=1, height=1, width=2, data=[b"\0" * 8])
    v1.layers.add(name="a").blobs.append(legacy)
    c3d.layers.add(name="a").blobs.append(c3d_blob(1, 1, 2, 1, 2))
    layer = v0.layers.add().layer
    layer.name = "a"
    layer.blobs.append(legacy)
    return [each.SerializePartialToString() for each in (net, v1, c3d, v0)]


def state(**fields) -> weights.SolverState:
    histories = [np.zeros((1, 2), np.float32), np.zeros(2, np.float32)]
    known = {"random_seed": 1, "ranks": 2, "samples_seen": 100, "recent_loss": [0.5, 0.25], "last_rate": 0.1}
    known |= {"global_batch": 64, "iteration": 10, "learned_net": "x.caffemodel", "history": histories, "digest": "ab"}
    return weights.SolverState(**{**known, **fields})


def solverstates() -> list[bytes]:
    states = [state(), weights.SolverState(iteration=3, learned_net="x.caffemodel")]
    return [contents(lambda path: weights.write_solverstate(path, each), "x.solverstate") for each in states]  # noqa: B023


def solverstates_h5() -> list[bytes]:
    return [contents(lambda path: weights.write_solverstate(path, state()), "x.solverstate.h5")]


def caffemodels_h5() -> list[bytes]:
    net = proto.NetParameter(name="n")
    net.layer.add(name="conv")
    blobs = {"conv": [np.zeros((2, 3), np.float32), np.zeros(2, np.float32)]}
    return [contents(lambda path: weights.write_caffemodel(path, net, blobs), "x.caffemodel.h5")]


def data_h5() -> list[bytes]:
    """Returns a file with plain datasets, and one with compressed chunks."""

    def write(path: Path, **options) -> None:
        with h5py.File(path, "w") as file:
            file.create_dataset("data", data=np.ones((4, 3, 2, 2), np.float32), **options)
            file["label"] = np.arange(4, dtype=np.float64)

    return [contents(write), contents(lambda path: write(path, chunks=(2, 3, 2, 2), compression="gzip"))]


def states_of_torch(name: str) -> list[bytes]:
    tensors = {"conv.weight": np.ones((2, 3, 1, 1), np.float32), "conv.n": np.zeros((), np.int64)}
    return [contents(lambda path: write_state(path, tensors), name)]


def onnx_models() -> list[bytes]:
    """Returns models of a small net, and of what other tools write."""
    from tests.exchange import test_onnx_import as small

    text = """
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 3 dim: 6 dim: 6 } } }
    layer { name: "c" type: "Convolution" bottom: "x" top: "c" convolution_param { num_output: 2 kernel_size: 3 } }
    layer { name: "p" type: "Pooling" bottom: "c" top: "p" pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 } }
    layer { name: "r" type: "Reshape" bottom: "p" top: "r" reshape_param { shape { dim: 0 dim: -1 } } }
    layer { name: "i" type: "InnerProduct" bottom: "r" top: "i" inner_product_param { num_output: 2 } }
    layer { name: "s" type: "Softmax" bottom: "i" top: "s" }"""
    config = parse_net(text)
    blobs = {"c": [np.ones((2, 3, 3, 3)), np.ones(2)], "i": [np.ones((2, 18)), np.ones(2)]}

    def write(path: Path) -> None:
        arrays = {name: [each.astype(np.float32) for each in given] for name, given in blobs.items()}
        weights.write_caffemodel(path, config.message, arrays)
        export_onnx(config, str(path), path)

    others = [small.model(nodes, {"x": small.SHAPE}, **constants) for nodes, constants in small.CASES.values()]
    return [contents(write), *(each.SerializeToString() for each in others)]


def means() -> list[bytes]:
    blob = proto.raw.BlobProto(num=1, channels=3, height=2, width=2, data=[b"\0" * 48])
    newer = proto.raw.BlobProto(data=[b"\0" * 48])
    newer.shape.dim.extend([3, 2, 2])
    return [each.SerializeToString() for each in (blob, newer, c3d_blob(1, 3, 2, 2, 2))]


def clips() -> list[bytes]:
    """Returns a clip in each format, of six frames of 24 x 24 pixels."""
    frames = moving_squares(6, 24, 24)
    return [contents(lambda path: write_clip(path, frames), f"x.{kind}") for kind in KINDS]


def zips() -> list[bytes]:
    """Returns a zip packed in each way that Python knows."""
    return [_zip(how) for how in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)]


def _zip(how: int) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", how) as archive:
        for name, content in {"t/": b"", "t/a/1.jpg": b"x" * 100, "t/b/2.png": b"y" * 100, "t/l.txt": b"a 1"}.items():
            info = zipfile.ZipInfo(name)  # its date is fixed
            info.compress_type = how
            archive.writestr(info, content)
    return out.getvalue()


def tars() -> list[bytes]:
    """Returns a tar of each format, then a tar of tars, and one that holds samples."""
    names = ("a/1.jpg", "b/" + "l" * 120 + ".png")
    classes = [_tar(form, dict.fromkeys(names, b"x" * 700)) for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)]
    nested = _tar(tarfile.USTAR_FORMAT, {"n1.tar": _tar(tarfile.USTAR_FORMAT, {"1.jpg": b"x"})})
    samples = {"1.jpg": b"x", "1.cls": b"1 0", "1.mask.png": b"y", "2.jpg": b"x", "2.cls": b"2 1", "2.mask.png": b"y"}
    return [*classes, nested, _tar(tarfile.USTAR_FORMAT, samples)]


def _tar(form: int, members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def tfrecords() -> list[bytes]:
    features = {"image/encoded": b"x" * 50, "image/class/label": [3], "image/segmentation/class/encoded": b"y"}
    return [record(serialise(features)) * 2, record(serialise({"image": b"x", "label": [1.5, 2.0]}))]


def recs() -> list[bytes]:
    """Returns whole records with one label and with two, and a record in two pieces."""

    def piece(kind: int, content: bytes) -> bytes:
        return struct.pack("<II", 0xCED7230A, kind << 29 | len(content)) + content + bytes(-len(content) % 4)

    head = struct.pack("<IfQQ", 0, 1.0, 7, 0)
    labels = struct.pack("<IfQQff", 2, 0.0, 8, 0, 1.0, 2.0)
    return [piece(0, head + b"xyz") + piece(0, labels + b"x"), piece(1, head) + piece(3, b"xyz")]


def lmdbs() -> list[bytes]:
    values = [
        proto.Datum(channels=3, height=4, width=4, data=bytes(48), label=i).SerializeToString() for i in range(40)
    ]
    return [contents(lambda path: write_lmdb(path, values))]


def write_lmdb(path: Path, values: list[bytes]) -> None:
    """Writes an LMDB in one file, without the file of its locks."""
    with lmdb.open(str(path), map_size=1 << 22, subdir=False, lock=False) as environment:
        with environment.begin(write=True) as transaction:
            for index, value in enumerate(values):
                transaction.put(b"%08d" % index, value)
