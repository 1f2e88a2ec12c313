"""AnnotatedData: Reads pictures with boxes of the objects in them, from a database of AnnotatedDatums (SSD, YOLO)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine import proto
from engine.data.boxes import COLUMNS, DIFFICULT, boxes_of, make_emit, mirrored, seen_from
from engine.data.decode import AnyImage, ImageError, as_array, as_pillow, decode, parse_annotated
from engine.data.distort import make_distort
from engine.data.keyed_random import KeyedRandom
from engine.data.limits import check_within
from engine.data.patches import make_expand, make_patches
from engine.data.reader import Request, Sample, Shape
from engine.data.readers.database import DatabaseReader, picture_shape
from engine.data.registry import reader
from engine.data.retouch import retouch
from engine.errors import ConfigError

MAX_BOXES = 2048  # of one picture, 64 KB; COCO has up to 93, WIDER FACE nearly 2,000
# The fields of transform_param that move a picture in ways that its boxes do not follow.
_NOT_FOLLOWED = ("random_aspect_ratio_param", "pad", "fix_crop", "multi_scale", "rand_augment_param")


@reader("AnnotatedData")
class AnnotatedReader(DatabaseReader):
    """Gives two tops: the pictures (n, c, h, w) and their boxes (1, 1, n * MAX_BOXES, 8).

    The row of a box is: number of the picture in the batch, class, instance, x1, y1, x2, y2 in fractions of the
    picture's sides, difficult. The rows after the last box are -1.

    The steps are, in this order: distort_param, expand_param, a patch by batch_sampler, resize_param, crop, mirror. A
    patch and a crop keep the boxes that emit_constraint allows. resize_param.prob has no effect: the forks choose with
    it between several resize_param, and here all pictures of a batch have one size.

    With yolo_data_type 1, of MobileNet-YOLO's fork, yolo_data_jitter makes the patches if there is no batch_sampler,
    and difficult boxes are left out unless train_diffcult is set. A box has five numbers then in the fork; here it has
    eight as always.
    """

    handled = ("distort_param", "expand_param")

    def __init__(self, message: proto.LayerParameter, request: Request):
        if message.transform_param.HasField("resize_param"):
            message = proto.LayerParameter.FromString(message.SerializeToString())
            check_within(0, message.transform_param.resize_param.prob, 1, "resize_param.prob", request.where)
            message.transform_param.resize_param.ClearField("prob")
        super().__init__(message, request)
        if not hasattr(self._source, "serialised"):
            raise ConfigError(
                f"layer '{message.name}': AnnotatedData reads AnnotatedDatums, from an LMDB or LevelDB; "
                f"{message.data_param.source} holds image files",
                request.where,
            )
        transform, annotated = message.transform_param, message.annotated_data_param
        mode = transform.resize_param.resize_mode
        if transform.HasField("resize_param") and mode != proto.ResizeParameter.WARP:
            name = proto.ResizeParameter.Resize_mode.Name(mode)
            raise ConfigError(f"resize_mode {name}: AnnotatedData supports WARP only", request.where)
        for field in _NOT_FOLLOWED:
            if transform.HasField(field) and getattr(transform, field):
                what = "boxes do not follow it; take it out of AnnotatedData"
                raise ConfigError(f"transform_param.{field}: {what}", request.where)
        self._emit = make_emit(transform.emit_constraint if transform.HasField("emit_constraint") else None)
        self._distort = None
        if transform.HasField("distort_param"):
            self._distort = make_distort(transform.distort_param, request.where)
        self._steps = []
        if transform.HasField("expand_param"):
            self._steps.append(make_expand(transform, request.where))
        yolo = annotated.yolo_data_type == 1
        self._all = annotated.train_diffcult or not yolo
        if annotated.batch_sampler or yolo:
            self._steps.append(make_patches(annotated, transform, request.where))
        self.shapes = (self.first_shape(self._transformer.shape), (MAX_BOXES, 1 + COLUMNS))

    def decode(self, fetched: bytes) -> tuple[AnyImage, np.ndarray]:
        """Returns (picture, boxes (n, COLUMNS)). Raises ImageError if there are too many boxes."""
        annotated = parse_annotated(fetched)
        boxes = boxes_of(annotated)
        if len(boxes) > MAX_BOXES:
            raise ImageError(f"the picture has {len(boxes)} boxes, at most {MAX_BOXES} are held")
        return decode(annotated.datum, self._transformer.color), boxes

    def load(self, sample: Sample, out: Sequence[np.ndarray]) -> str:
        def use(image: AnyImage, boxes: np.ndarray, random: KeyedRandom) -> None:
            if self._distort and (changes := self._distort(random, 0, 0)):
                image = np.array(as_array(image), order="C")
                retouch(image, changes)
            for step in self._steps:
                image, boxes = step(as_pillow(image), boxes, random)
            cut = self._transformer.apply(image, random, out[0])
            boxes = seen_from(cut.patch, boxes[self._emit(cut.patch, boxes)])
            boxes = boxes[(boxes[:, DIFFICULT] == 0) | self._all]
            out[1].fill(-1)
            out[1][: len(boxes), 0] = sample.place
            out[1][: len(boxes), 1:] = mirrored(boxes) if cut.mirrored else boxes

        return self.read(sample.epoch, sample.index, use)

    @classmethod
    def top_shapes(cls, shapes: Sequence[Shape], batch_size: int) -> list[Shape]:
        return [(batch_size, *shapes[0]), (1, 1, batch_size * MAX_BOXES, 1 + COLUMNS)]

    def tops(self, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Moves the boxes of all pictures together, without a gap: some layers stop reading at the first -1."""
        pictures, boxes = arrays
        rows = boxes.reshape(-1, 1 + COLUMNS)
        full = rows[:, 0] >= 0
        label = np.full(rows.shape, -1, np.float32)
        label[: np.count_nonzero(full)] = rows[full]
        return pictures, label.reshape(1, 1, *rows.shape)

    @classmethod
    def shapes_without_data(cls, message: proto.LayerParameter, where: str | None) -> tuple[Shape, ...]:
        return picture_shape(message, where), (MAX_BOXES, 1 + COLUMNS)
