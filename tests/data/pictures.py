"""Makes pictures with known pixels, as arrays and as Datums."""

import io
import struct
import zlib

import numpy as np
from PIL import Image

from engine import proto


def random_pixels(seed: int, height: int = 12, width: int = 16, channels: int = 3) -> np.ndarray:
    """Returns (height, width, channels) uint8 in the order R, G, B, so smooth that JPEG hardly changes them."""
    coarse = np.random.RandomState(seed).randint(0, 256, (3, 4, channels)).astype(np.uint8)
    bands = [
        Image.fromarray(coarse[:, :, c]).resize((width, height), Image.Resampling.BICUBIC) for c in range(channels)
    ]
    return np.stack([np.asarray(band) for band in bands], axis=2)


def raw_datum(pixels: np.ndarray, label: int = 0) -> bytes:
    """Serialises a Datum of (h, w, c) bytes R, G, B as Caffe stores it: channel by channel, in the order B, G, R."""
    planes = pixels[:, :, ::-1].transpose(2, 0, 1)
    channels, height, width = planes.shape
    return proto.Datum(
        channels=channels, height=height, width=width, data=planes.tobytes(), label=label
    ).SerializeToString()


def image_bytes(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    """Returns the bytes of an image file of (h, w, c) bytes, R, G, B or grey."""
    file = io.BytesIO()
    Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0]).save(file, kind)
    return file.getvalue()


def png(width: int, height: int, data: bytes = b"", bits: int = 8) -> bytes:
    """Returns a grey PNG whose header states this size, whatever its pixels; those begin with `data`."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def encoded_datum(pixels: np.ndarray, kind: str = "PNG", label: int = 0) -> bytes:
    """Serialises a Datum that holds an image file."""
    return proto.Datum(data=image_bytes(pixels, kind), encoded=True, label=label).SerializeToString()


def bgr(pixels: np.ndarray) -> np.ndarray:
    """Turns (h, w, c) bytes R, G, B into what a net reads: (c, h, w) float32 in the order B, G, R."""
    return pixels[:, :, ::-1].transpose(2, 0, 1).astype(np.float32)
