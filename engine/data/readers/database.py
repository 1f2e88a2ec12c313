"""Data: Reads pictures from any source, or raw numbers, each with its label, several labels, or a mask."""

from __future__ import annotations

import os

from engine import proto
from engine.data.decode import GRAY, AnyImage, decode, decode_mask, parse_datum
from engine.data.labels import names_written_with
from engine.data.mean import read_mean
from engine.data.pair import Partner
from engine.data.paired_reader import PairedReader
from engine.data.reader import Request, Shape, random_first
from engine.data.registry import Stored, open_source, reader
from engine.data.staging import classes_of_part, staged
from engine.data.transform import Transformer, crop_shape, forced_color
from engine.errors import ConfigError


class DatabaseReader(PairedReader):
    """The base of the readers of a source that data_param names. A subclass sets `shapes` and defines decode()."""

    field = "data_param"
    handled: tuple[str, ...] = ()  # fields of transform_param that the reader itself applies

    def __init__(self, message: proto.LayerParameter, request: Request):
        super().__init__(message, request)
        param = message.data_param
        if not param.source:
            raise ConfigError("data_param.source is missing", request.where)
        # The default of `backend` is LEVELDB. Who leaves it out means no LevelDB, but what is found at the path.
        backend = param.DB.Name(param.backend) if param.HasField("backend") else ""
        self._transformer = Transformer(message.transform_param, request.phase, request.where, self.handled)
        path = written = request.path(self.source_of(message))
        owners = request.owners(param.source)
        share, fields = request.share, param.field
        if param.stage_part and owners:
            raise ConfigError(
                "stage_part divides one source among hosts; a source with %# is each rank's own already: take "
                "stage_part out",
                request.where,
            )
        if param.stage and share is not None:
            options = {"keep": param.stage_keep, "part": param.stage_part, "fields": fields, "where": request.where}
            path = staged(path, param.stage, share, **options)
            if param.stage_part:
                backend, owners, fields = "", share.ranks, ()
        elif (param.stage_keep or param.stage_part) and not param.stage:
            raise ConfigError("stage_keep and stage_part need stage: the folder to copy to", request.where)
        self._source = open_source(path, request.where, param.shuffle, fields, backend)
        self.name = param.source
        self.size, self.classes = len(self._source), self._source.classes or names_written_with(written)
        if param.stage_part and share is not None:
            self.classes = classes_of_part(path)
        self.shuffle = param.shuffle
        self.owners = owners
        self.depth = max(1, param.prefetch)
        self.first = random_first(param.rand_skip, request)

    def fetch(self, index: int) -> tuple[str, Stored]:
        return self._source.item(index)


@reader("Data")
class DatumReader(DatabaseReader):
    """Gives the arrays of PairedReader. A Datum without a label and without a mask has label 0."""

    handled = ("mix_param",)

    def __init__(self, message: proto.LayerParameter, request: Request):
        super().__init__(message, request)
        self.look(message, request)

    def decode(self, fetched: Stored) -> tuple[AnyImage, Partner]:
        datum = parse_datum(fetched) if isinstance(fetched, bytes) else fetched
        return decode(datum, self._transformer.color), partner_of(datum)

    @classmethod
    def shapes_without_data(cls, message: proto.LayerParameter, where: str | None) -> tuple[Shape, ...]:
        return picture_shape(message, where), ()


def partner_of(datum: proto.Datum) -> Partner:
    """Returns the mask and the labels of a Datum. Raises UndecodableImage if its mask cannot be decoded."""
    mask = decode_mask(datum.mask) if datum.mask else None
    if datum.labels:
        return Partner(tuple(datum.labels), mask)
    return Partner(() if mask is not None and not datum.HasField("label") else (datum.label,), mask)


def picture_shape(message: proto.LayerParameter, where: str | None) -> tuple[int, int, int]:
    """Returns the shape (c, h, w) of a picture by transform_param alone, for a source that is missing.

    A mean_file that is there tells it. Without one, the size is that of the crop or of resize_param, and the channels
    follow from force_gray and the number of mean values; they are 3 if neither is given. Raises ConfigError if the
    size is not given.
    """
    param = message.transform_param
    crop_h, crop_w = crop_shape(param, where)
    if param.mean_file and os.path.isfile(param.mean_file):
        channels, height, width = read_mean(param.mean_file, where).shape
        return channels, crop_h or height, crop_w or width
    height, width = crop_h or param.resize_param.height, crop_w or param.resize_param.width
    if not (height and width):
        raise ConfigError(
            f"the size of the images is unknown: source {message.data_param.source or '(none)'} is not there, and "
            "transform_param has no crop_size",
            where,
        )
    return 1 if forced_color(param, where) == GRAY else max(len(param.mean_value), 3), height, width
