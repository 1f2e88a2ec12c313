"""Averages bilinear samples of every region of interest to one size (Mask R-CNN, arXiv 1703.06870)."""

from __future__ import annotations

from engine.layers.base import Attributes, Shape
from engine.layers.registry import register
from engine.layers.roi_pooling import RegionGrid


@register("ROIAlign", "RoIAlign")
class ROIAlign(RegionGrid):
    """Computes the average of bilinear samples of each cell, as in Mask R-CNN. Bottoms: see RegionPooling; top: see
    RegionGrid. A cell has `sampling_ratio` squared samples or, without it, one for each pixel that it is long, rounded
    up, along each axis."""

    op_type = "ROIAlign"

    @property
    def param(self):
        return self.message.roi_align_param

    def infer(self) -> list[Shape]:
        if self.message.HasField("roi_pooling_param"):
            raise self.error(
                "roi_pooling_param of a ROIAlign means a maximum in one fork and other samples in the next; give "
                "roi_align_param, which averages samples as Mask R-CNN does"
            )
        self.check_samples("sampling_ratio", self.ratio, least=0)
        return super().infer()

    @property
    def ratio(self) -> int:
        """The number of samples of a cell along each axis; 0 if it follows from the size of the cell."""
        return max(self.param.sampling_ratio, 0)

    def attributes(self) -> Attributes:
        return {**super().attributes(), "sampling_ratio": self.ratio}
