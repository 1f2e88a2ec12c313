"""caffe.draw: draws a NetParameter, as `engine draw_net` does."""

from __future__ import annotations

import tempfile
from pathlib import Path

from engine import proto
from engine.config import parse_net
from engine.config.phases import kept
from engine.report.draw_net import draw_layers


def draw_net(
    caffe_net: proto.NetParameter, rankdir: str, ext: str = "png", phase: int | None = None, display_lrm: bool = False
) -> bytes:
    """Returns the picture as the content of a file of the kind `ext`. The rest is as in draw_net_to_file()."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"net.{ext}"
        draw_net_to_file(caffe_net, str(path), rankdir, phase, display_lrm)
        return path.read_bytes()


def draw_net_to_file(
    caffe_net: proto.NetParameter,
    filename: str,
    rankdir: str = "LR",
    phase: int | None = None,
    display_lrm: bool = False,
) -> None:
    """Writes a picture of a net. The net is not built: its data and the code of its Python layers need not be there.

    Args:
        filename: a .png, .svg, .pdf or .dot.
        rankdir: LR or TB (downwards).
        phase: draws the layers of this phase (default: those of all phases).
        display_lrm: ignored: the picture does not show the layers' learning rates.

    Raises:
        ConfigError: a layer has both include and exclude rules.
        EngineError: the kind of picture needs pygraphviz, which is not installed, or the file cannot be written.
    """
    config = parse_net(str(caffe_net), caffe_net.name or "the net")
    layers = [
        layer
        for index, layer in enumerate(config.message.layer)
        if phase is None or kept(layer, proto.NetState(phase=phase), config.where(index))
    ]
    draw_layers(config.message.name, layers, filename, rankdir)
