"""Position-sensitive pooling of regions (R-FCN)."""

from __future__ import annotations

from engine.layers.base import Shape
from engine.layers.registry import register
from engine.layers.roi_pooling import RegionPooling


class ScoreMaps(RegionPooling):
    """Top (R, output_dim, group_size, group_size), of features (N, output_dim group_size^2, H, W): of every cell of a
    grid over the region, cell (i, j) of output c in channel (c group_size + i) group_size + j."""

    def pooled_shape(self, channels: int) -> Shape:
        output_dim, group = self.param.output_dim, self.param.group_size
        if output_dim < 1 or group < 1:
            raise self.error(f"expected output_dim and group_size of at least 1, got {output_dim} and {group}")
        if channels != output_dim * group**2:
            raise self.error(
                f"expected features of {output_dim * group**2} channels, output_dim {output_dim} times group_size "
                f"{group} squared, got {channels}"
            )
        return (output_dim, group, group)


@register("PSROIPooling")
class PSROIPooling(ScoreMaps):
    """Top: the average of every cell; 0 where a cell is empty."""

    @property
    def param(self):
        return self.message.psroi_pooling_param
