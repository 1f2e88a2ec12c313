"""ImageData: Image files named in a list, each with one label."""

from __future__ import annotations

from PIL import Image

from engine import proto
from engine.data.decode import COLOR, GRAY, AnyImage, decode_bytes, resized
from engine.data.image_tree import read_list
from engine.data.limits import MAX_BYTES, check_size
from engine.data.reader import PictureReader, Request, Shape, random_first
from engine.data.registry import reader
from engine.data.transform import Transformer, crop_shape
from engine.errors import ConfigError, DataError
from engine.files import read_bytes


@reader("ImageData")
class ImageListReader(PictureReader):
    """Arrays: the picture (c, h, w), its label (). Lines of the list: `path label`, the path below root_folder."""

    field = "image_data_param"

    def __init__(self, message: proto.LayerParameter, request: Request):
        super().__init__(message, request)
        param = message.image_data_param
        if not param.source:
            raise ConfigError("image_data_param.source is missing", request.where)
        _check_size(param, request.where)
        self._transformer = Transformer(message.transform_param, request.phase, request.where)
        self.name = self.source_of(message).replace("%#", str(request.rank)).replace("%*", str(request.ranks))
        self._place = f"{request.where}: {self.name}" if request.where else self.name
        self._entries = read_list(self.name, request.where)
        self._root = param.root_folder  # joined as text, as in Caffe: "pictures/set1_" is a prefix, too
        self._color = COLOR if param.is_color else GRAY
        self._size = (param.new_width, param.new_height)
        self.size = len(self._entries)
        self.shuffle = param.shuffle
        self.own_items = "%#" in param.source
        self.first = random_first(param.rand_skip, request)
        self.shapes = (self.first_shape(self._transformer.shape), ())

    def fetch(self, index: int) -> tuple[str, tuple[bytes, int]]:
        name, label = self._entries[index]
        return name, (read_bytes(self._root + name, DataError, self._place, MAX_BYTES), label)

    def decode(self, fetched: tuple[bytes, int]) -> tuple[AnyImage, int]:
        data, label = fetched
        image = decode_bytes(data, self._color)
        if self._size[0]:
            image = resized(image, self._size, Image.Resampling.BILINEAR)
        return image, label

    @classmethod
    def shapes_without_data(cls, message: proto.LayerParameter, where: str | None) -> tuple[Shape, ...]:
        param = message.image_data_param
        _check_size(param, where)
        crop_h, crop_w = crop_shape(message.transform_param, where)
        height, width = crop_h or param.new_height, crop_w or param.new_width
        if not height:
            raise ConfigError(
                f"the size of the images is unknown: source {param.source} is not there, and there is neither "
                "new_height nor crop_size",
                where,
            )
        return (3 if param.is_color else 1, height, width), ()


def _check_size(param: proto.ImageDataParameter, where: str | None) -> None:
    if bool(param.new_height) != bool(param.new_width):
        raise ConfigError(
            f"new_height and new_width need each other; got {param.new_height} and {param.new_width}", where
        )
    if param.new_height:
        check_size(param.new_height, param.new_width, "new_height and new_width", where)
    for field in ("min_height", "min_width"):
        if getattr(param, field):
            raise ConfigError(f"image_data_param.{field} is not supported; use transform_param.resize_param", where)
