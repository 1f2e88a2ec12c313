"""Reads pictures named in a list, each with a mask: ImageSegData, DenseImageData, SegData and ImageLabelmapData.

All follow the pair rule (engine/data/pair.py). They differ in what their forks of Caffe do besides with the picture and
the mask.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

from engine import proto
from engine.data.decode import COLOR, AnyImage, ImageError, as_pillow, canvas, resized
from engine.data.pair import IGNORED, Partner
from engine.data.reader import Request, Sample, Shape
from engine.data.readers.image_list import ListedReader, Listing, listing_of
from engine.data.registry import Stored, reader
from engine.data.transform import crop_shape
from engine.errors import ConfigError


class MaskedReader(ListedReader):
    """Gives two arrays: the picture (c, h, w) and its mask (1, h, w)."""

    has_masks = True

    def decode(self, fetched: Stored) -> tuple[AnyImage, Partner]:
        image, partner = super().decode(fetched)
        if partner.mask is None:
            raise ImageError("it has no mask: expected lines `relative/path.jpg relative/mask.png`")
        return image, Partner((), partner.mask)


@reader("ImageSegData")
class ImageSegReader(MaskedReader):
    """The layer of DeepLab and PSPNet. It gives a third array: height and width (1, 1, 2) of the picture, without its
    padding.

    A picture that is smaller than the crop is padded with the mean below and to the right, its mask with
    ignore_label. With label_type PIXEL the line names the mask; with IMAGE all pixels have the line's label; with NONE
    all pixels are ignore_label. In TRAIN, a picture and its mask are first resized by one of
    transform_param.scale_factors, drawn at random.
    """

    field = "image_data_param"
    handled = (*MaskedReader.handled, "scale_factors")

    def __init__(self, message: proto.LayerParameter, request: Request):
        super().__init__(message, request)
        param, transform = message.image_data_param, message.transform_param
        if transform.mean_file:
            raise ConfigError(
                f"layer '{message.name}': ImageSegData takes no mean_file; give mean_value", request.where
            )
        self._type, self._ignored = param.label_type, param.ignore_label
        if not 0 <= self._ignored <= IGNORED:
            raise ConfigError(
                f"image_data_param.ignore_label: expected 0 to {IGNORED}, got {self._ignored}", request.where
            )
        self._factors: list[float] = []
        if any(not 0.01 <= factor <= 100 for factor in transform.scale_factors):
            raise ConfigError("transform_param.scale_factors: expected 0.01 to 100 each", request.where)
        if transform.scale_factors and not any(crop_shape(transform, request.where)):
            raise ConfigError("transform_param.scale_factors need crop_size: the pictures' sizes differ", request.where)
        self._least = crop_shape(transform, request.where)
        self._mean = list(transform.mean_value) or [0.0]
        self.open_list(listing_of(param, self.field, request.where, bare=self._type == param.NONE), transform, request)
        self.look(message, request)
        self.shapes = (*self.shapes, (1, 1, 2))
        self._factors += transform.scale_factors if request.phase == proto.TRAIN else []

    def decode(self, fetched: Stored) -> tuple[AnyImage, Partner]:
        image, partner = super(MaskedReader, self).decode(fetched)
        picture = as_pillow(image)
        if self._type == proto.ImageDataParameter.PIXEL:
            if partner.mask is None:
                raise ImageError("it has no mask: label_type PIXEL expects lines `path.jpg mask.png`")
            mask = as_pillow(partner.mask)
        else:
            label = self._ignored
            if self._type == proto.ImageDataParameter.IMAGE:
                if len(partner.labels) != 1 or not 0 <= partner.labels[0] <= IGNORED:
                    raise ImageError(
                        f"label_type IMAGE expects one label of 0 to {IGNORED}, got "
                        f"{' '.join(f'{each:g}' for each in partner.labels) or 'none'}; set label_type: PIXEL for masks"
                    )
                label = int(partner.labels[0])
            mask = canvas("L", picture.size, label)
        return (picture, Partner((), mask)) if self._factors else self._fitted(picture, mask)

    def _fitted(self, picture: Image.Image, mask: Image.Image) -> tuple[Image.Image, Partner]:
        """Pads picture and mask to the crop's size. Returns (picture, Partner), whose labels are the picture's height
        and width before."""
        size = (float(picture.height), float(picture.width))
        wanted = max(picture.width, self._least[1]), max(picture.height, self._least[0])
        if wanted != picture.size:
            colour = tuple(min(255, max(0, round(value))) for value in (self._mean * 3)[:3])[::-1]
            picture = _padded(picture, wanted, colour if picture.mode == COLOR else colour[-1])
            mask = _padded(mask, wanted, self._ignored)
        return picture, Partner(size, mask)

    def look(self, message: proto.LayerParameter, request: Request) -> None:
        super().look(message, request)
        self.shapes = self.shapes[:2]

    def load(self, sample: Sample, out: Sequence[np.ndarray]) -> str:
        def use(image: AnyImage, partner: Partner, random) -> None:
            assert partner.mask is not None
            if self._factors:
                factor = self._factors[random.integer(0, len(self._factors) - 1)]
                picture = as_pillow(image)
                size = max(1, round(picture.width * factor)), max(1, round(picture.height * factor))
                picture = resized(picture, size, Image.Resampling.BILINEAR)
                image, partner = self._fitted(picture, resized(as_pillow(partner.mask), size, Image.Resampling.NEAREST))
                assert partner.mask is not None
            self._masks.apply(partner.mask, image, random.copy(), out[1])
            self._transformer.apply(image, random, out[0])
            out[2][0, 0] = np.minimum(partner.labels, out[0].shape[1:])

        return self.read(sample.epoch, sample.index, use)

    @classmethod
    def shapes_without_data(cls, message: proto.LayerParameter, where: str | None) -> tuple[Shape, ...]:
        shape = cls.listed_shape(listing_of(message.image_data_param, cls.field, where), message.transform_param, where)
        return shape, (1, *shape[1:]), (1, 1, 2)


def _padded(image: Image.Image, size: tuple[int, int], colour: int | tuple[int, ...]) -> Image.Image:
    larger = canvas(image.mode, size, colour)
    larger.paste(image, (0, 0))
    return larger


@reader("DenseImageData")
class DenseImageReader(MaskedReader):
    """The layer of SegNet. Its own mirror and crop are random in both phases, as in SegNet's fork.

    With ENet's label_divide_factor, only the first pixel of each square of so many pixels of the mask stays."""

    field = "dense_image_data_param"

    def __init__(self, message: proto.LayerParameter, request: Request):
        super().__init__(message, request)
        param, transform = message.dense_image_data_param, _dense_transform(message, request.where)
        own_random = param.mirror or param.crop_height
        changed = proto.LayerParameter(name=message.name, transform_param=transform)
        asked = Request(
            proto.TRAIN if own_random else request.phase,
            request.seed,
            request.where,
            request.skip_bad_images,
            request.rank,
            request.ranks,
        )
        self._factor = _label_divide_factor(message, request.where)
        self.open_list(listing_of(param, self.field, request.where), transform, asked)
        self.look(changed, asked)

    def look(self, message: proto.LayerParameter, request: Request) -> None:
        super().look(message, request)
        self._mask = self.shapes[1]  # the shape of the mask before it is divided: the picture's size
        self.shapes = (self.shapes[0], _divided(self.shapes[0], self._factor, request.where))

    def load(self, sample: Sample, out: Sequence[np.ndarray]) -> str:
        if self._factor == 1:
            return super().load(sample, out)
        mask = np.empty(self._mask, out[1].dtype)
        name = super().load(sample, (out[0], mask))
        height, width = out[1].shape[1:]
        out[1][...] = mask[:, :: self._factor, :: self._factor][:, :height, :width]
        return name

    @classmethod
    def shapes_without_data(cls, message: proto.LayerParameter, where: str | None) -> tuple[Shape, ...]:
        listing = listing_of(message.dense_image_data_param, cls.field, where)
        shape = cls.listed_shape(listing, _dense_transform(message, where), where)
        return shape, _divided(shape, _label_divide_factor(message, where), where)

    @classmethod
    def transform_of(cls, message: proto.LayerParameter, where: str | None) -> proto.TransformationParameter:
        return _dense_transform(message, where)


def _label_divide_factor(message: proto.LayerParameter, where: str | None) -> int:
    factor = message.dense_image_data_param.label_divide_factor
    if factor < 1:
        raise ConfigError(f"dense_image_data_param.label_divide_factor: expected 1 or more, got {factor}", where)
    return factor


def _divided(picture: Shape, factor: int, where: str | None) -> Shape:
    """Returns the shape (1, h, w) of a picture's mask. Raises ConfigError if nothing of it stays."""
    height, width = (side // factor for side in picture[1:])
    if not (height and width):
        raise ConfigError(
            f"dense_image_data_param.label_divide_factor: expected at most the picture's sides, {picture[1]} x "
            f"{picture[2]}, got {factor}",
            where,
        )
    return 1, height, width


def _dense_transform(message: proto.LayerParameter, where: str | None) -> proto.TransformationParameter:
    """Returns the layer's transform_param with the crop, mirror and mean_file of dense_image_data_param in place of its
    own."""
    param, transform = message.dense_image_data_param, proto.TransformationParameter()
    transform.CopyFrom(message.transform_param)
    if bool(param.crop_height) != bool(param.crop_width):
        raise ConfigError(
            f"crop_height and crop_width need each other; got {param.crop_height} and {param.crop_width}", where
        )
    if param.crop_height:
        transform.crop_h, transform.crop_w = param.crop_height, param.crop_width
    if param.mirror:
        transform.mirror = True
    if param.mean_file:
        transform.mean_file = param.mean_file
    return transform


@reader("SegData")
class SegReader(MaskedReader):
    """The layer of yjxiong's fork. A batch is one picture, which is cut to sides that are multiples of
    transform_param.stride. In the fork pictures differ in size; here all must have that of the first one, or the
    crop's."""

    field = "seg_data_param"

    def __init__(self, message: proto.LayerParameter, request: Request):
        super().__init__(message, request)
        param, transform = message.seg_data_param, message.transform_param
        if param.balance:
            raise ConfigError(
                "seg_data_param.balance is not supported; repeat the lines of rare classes", request.where
            )
        self._stride = max(1, transform.stride)
        listing = Listing(param.source, param.root_dir, shuffle=param.shuffle)
        self.open_list(listing, transform, request)
        self.look(message, request)

    def decode(self, fetched: Stored) -> tuple[AnyImage, Partner]:
        image, partner = super().decode(fetched)
        picture = as_pillow(image)
        width, height = (side // self._stride * self._stride for side in picture.size)
        if not (width and height):
            raise ImageError(f"it has {picture.height} x {picture.width} pixels, fewer than stride {self._stride}")
        box = (0, 0, width, height)
        mask = as_pillow(partner.mask) if partner.mask is not None else None
        return picture.crop(box), Partner((), mask.crop(box) if mask is not None else None)

    @classmethod
    def batch_size(cls, message: proto.LayerParameter, where: str | None) -> int:
        return 1

    @classmethod
    def set_batch_size(cls, message: proto.LayerParameter, size: int) -> None:
        if size != 1:
            raise ConfigError(f"layer '{message.name}': batches of SegData are of one picture; got {size}")

    @classmethod
    def shapes_without_data(cls, message: proto.LayerParameter, where: str | None) -> tuple[Shape, ...]:
        shape = cls.listed_shape(Listing(message.seg_data_param.source, ""), message.transform_param, where)
        return shape, (1, *shape[1:])


@reader("ImageLabelmapData")
class ImageLabelmapReader(MaskedReader):
    """The layer of HED. Values 0 to 255 of a mask of edges become 0, or 1 from 128 on: an edge that more than half of
    the people who drew it agree on."""

    field = "image_data_param"

    def __init__(self, message: proto.LayerParameter, request: Request):
        super().__init__(message, request)
        listing = listing_of(message.image_data_param, self.field, request.where)
        self.open_list(listing, message.transform_param, request)
        self.look(message, request)

    def decode(self, fetched: Stored) -> tuple[AnyImage, Partner]:
        image, partner = super().decode(fetched)
        assert partner.mask is not None
        return image, Partner((), as_pillow(partner.mask).point([value > 127 for value in range(256)]))

    @classmethod
    def shapes_without_data(cls, message: proto.LayerParameter, where: str | None) -> tuple[Shape, ...]:
        shape = cls.listed_shape(listing_of(message.image_data_param, cls.field, where), message.transform_param, where)
        return shape, (1, *shape[1:])
