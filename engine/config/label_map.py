"""Names of classes (SSD's labelmap.prototxt), which lie beside nets and solvers and are neither."""

from __future__ import annotations

from engine import proto
from engine.config.config import read_text
from engine.config.prototext import fill, scan
from engine.errors import ConfigErrors


def read_label_map(path: str) -> proto.LabelMap | None:
    """None for a file that is something else. Raises ConfigError, ConfigErrors."""
    nodes = scan(read_text(path), path)
    if not nodes or any(node.name != "item" for node in nodes):
        return None
    labels = proto.LabelMap()
    errors = fill(labels, nodes, path)
    if errors:
        raise ConfigErrors(errors)
    return labels
