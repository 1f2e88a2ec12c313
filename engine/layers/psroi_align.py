"""Position-sensitive pooling of regions by samples between pixels (Light-Head R-CNN, arXiv 1711.07264)."""

from __future__ import annotations

from engine.layers.base import Attributes, Shape
from engine.layers.psroi_pooling import ScoreMaps
from engine.layers.registry import register


@register("PSROIAlign")
class PSROIAlign(ScoreMaps):
    """Top: the average of bilinear samples of every cell, of which there are `sample_num` squared, inside of it, or, if
    `sampling_ratio` is given, those of ROIAlign."""

    @property
    def param(self):
        return self.message.psroi_align_param

    def infer(self) -> list[Shape]:
        if self.message.HasField("psroi_pooling_param"):
            raise self.error(
                "psroi_pooling_param of a PSROIAlign means other samples in each version of its fork; give "
                "psroi_align_param, with sample_num or sampling_ratio"
            )
        if self.param.HasField("sample_num") and self.param.HasField("sampling_ratio"):
            raise self.error("expected sample_num or sampling_ratio, which are two forks' samples, got both")
        if self.param.sample_num < 1:
            raise self.error(f"expected sample_num of at least 1, got {self.param.sample_num}")
        return super().infer()

    def attributes(self) -> Attributes:
        aligned = self.param.HasField("sampling_ratio")
        samples = max(self.param.sampling_ratio, 0) if aligned else self.param.sample_num
        return {**super().attributes(), "aligned": aligned, "samples": samples}
