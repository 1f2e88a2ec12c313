"""Pools regions of position-sensitive score maps by samples between pixels (Light-Head R-CNN, arXiv 1711.07264)."""

from __future__ import annotations

from engine.layers.base import Attributes, Shape
from engine.layers.psroi_pooling import ScoreMaps
from engine.layers.registry import register


@register("PSROIAlign")
class PSROIAlign(ScoreMaps):
    """Computes the average of bilinear samples of each cell (R-FCN-PSROIAlign's layer). Bottoms: see RegionPooling;
    top: see ScoreMaps. A cell has `sample_num` squared samples inside of it or, if `sampling_ratio` is given, the
    samples that ROIAlign takes."""

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
        name = "sampling_ratio" if self.aligned else "sample_num"
        self.check_samples(name, self.samples, least=0 if self.aligned else 1)
        return super().infer()

    @property
    def aligned(self) -> bool:
        """Whether samples are those of ROIAlign."""
        return self.param.HasField("sampling_ratio")

    @property
    def samples(self) -> int:
        """The number of samples of a cell along each axis; 0 if ROIAlign's follow from the size of the cell."""
        return max(self.param.sampling_ratio, 0) if self.aligned else self.param.sample_num

    def attributes(self) -> Attributes:
        return {**super().attributes(), "aligned": self.aligned, "samples": self.samples}
