"""Items of a picture and what belongs to it, by the pair rule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine import proto
from engine.data.decode import AnyImage, ImageError
from engine.data.keyed_random import KeyedRandom
from engine.data.pair import MaskTransformer, Partner
from engine.data.reader import PictureReader, Request, Sample, Shape


class PairedReader(PictureReader):
    """Arrays: the picture (c, h, w); its mask (1, h, w), if the source has masks; its labels, () for one, (n,) for
    several. What decode() gives besides the picture is a Partner."""

    def look(self, message: proto.LayerParameter, request: Request) -> None:
        """Takes the shapes of the first item that can be decoded, as Caffe does. Raises ConfigError, DataError."""
        self._masks = MaskTransformer(message.transform_param, request.phase, request.where)
        found: list[Shape] = []

        def use(image: AnyImage, partner: Partner, random: KeyedRandom) -> None:
            found.append(self._transformer.shape(image))
            if partner.mask is not None:
                found.append(self._masks.shape(partner.mask, image))
            if partner.labels:
                found.append(() if len(partner.labels) == 1 else (len(partner.labels),))

        self.read(0, 0, use)
        self.shapes = tuple(found)

    def load(self, sample: Sample, out: Sequence[np.ndarray]) -> str:
        def use(image: AnyImage, partner: Partner, random: KeyedRandom) -> None:
            masked = len(self.shapes) > 1 and len(self.shapes[1]) == 3
            if masked and partner.mask is None:
                raise ImageError("expected a mask, as the first one has; got none")
            if partner.mask is not None:
                if not masked:
                    raise ImageError("unlike the first one, it has a mask")
                self._masks.apply(partner.mask, image, random.copy(), out[1])
            labels = out[1 + masked :]
            if sum(array.size for array in labels) != len(partner.labels):
                raise ImageError(
                    f"expected {sum(array.size for array in labels)} labels, as the first one has; got "
                    f"{len(partner.labels)}"
                )
            for array in labels:
                array[...] = partner.labels if array.ndim else partner.labels[0]
            self._transformer.apply(image, random, out[0])

        return self.read(sample.epoch, sample.index, use)
