"""Pools regions of position-sensitive score maps (R-FCN)."""

from __future__ import annotations

from engine.layers.base import Shape
from engine.layers.registry import register
from engine.layers.roi_pooling import RegionPooling


class ScoreMaps(RegionPooling):
    """The base of layers that pool each cell of a region from a channel of its own. Features
    (N, output_dim group_size^2, H, W); top (R, output_dim, group_size, group_size), where cell (i, j) of output c comes
    from channel (c group_size + i) group_size + j."""

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
    """Computes the average of each cell; 0 if the cell is empty (R-FCN's layer). Bottoms: see RegionPooling; top: see
    ScoreMaps."""

    @property
    def param(self):
        return self.message.psroi_pooling_param
