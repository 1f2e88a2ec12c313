"""Reads items of a picture, its mask and its labels, by the pair rule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine import proto
from engine.data.decode import AnyImage, ImageError
from engine.data.keyed_random import KeyedRandom
from engine.data.mix import Mix
from engine.data.pair import MaskTransformer, Partner
from engine.data.reader import PictureReader, Request, Sample, Shape


class PairedReader(PictureReader):
    """Gives these arrays of an item: the picture (c, h, w); its mask (1, h, w), if the source has masks; its labels, ()
    for one, (n,) for several. With mix_param, in TRAIN, one label becomes a distribution (classes,).

    decode() returns the picture and a Partner."""

    _mix: Mix | None = None

    def look(self, message: proto.LayerParameter, request: Request) -> None:
        """Takes the shapes of the first item that can be decoded, as Caffe does. Raises ConfigError, DataError."""
        self._masks = MaskTransformer(message.transform_param, request.phase, request.where)
        mix = message.transform_param.mix_param
        if message.transform_param.HasField("mix_param") and request.phase == proto.TRAIN:
            self._mix = Mix(mix, self.batch_size(message, request.where), request.seed, request.where)
            self.pairs = True
        found: list[Shape] = []

        def use(image: AnyImage, partner: Partner, random: KeyedRandom) -> None:
            found.append(self._transformer.shape(image))
            if partner.mask is not None:
                found.append(self._masks.shape(partner.mask, image))
            if partner.labels and self._mix:
                found.append(self._mix.label_shape(len(partner.labels)))
            elif partner.labels:
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
            self._write_labels(partner.labels, out[1 + masked :])
            self._transformer.apply(image, random, out[0])

        return self.read(sample.epoch, sample.index, use)

    def _write_labels(self, labels: Sequence[float], out: Sequence[np.ndarray]) -> None:
        """Writes the labels of a sample to out. Raises ImageError if they are more or fewer than those of the first
        sample."""
        if self._mix and len(labels) == 1 and out:
            self._mix.one_hot(labels[0], out[0])
            return
        expected = sum(array.size for array in out)
        if expected != len(labels):
            raise ImageError(f"expected {expected} labels, as the first one has; got {len(labels)}")
        for array in out:
            array[...] = labels if array.ndim else labels[0]

    def join(self, samples: Sequence[tuple[int, int]], arrays: Sequence[np.ndarray]) -> None:
        assert self._mix is not None
        self._mix.mix(samples, arrays[0], arrays[1:])
