"""Names of classes (SSD's labelmap.prototxt), which lie beside nets and solvers and are neither."""

from __future__ import annotations

from google.protobuf import text_format

from engine import proto
from engine.config.config import NetConfig, read_text
from engine.config.prototext import fill, scan
from engine.errors import ConfigErrors
from engine.files import is_regular


def label_names(config: NetConfig) -> dict[int, str]:
    """The classes' names by label, of the label_map_file of the net's data; {} where no such file is there. Raises
    ConfigError, ConfigErrors."""
    for layer in config.message.layer:
        path = layer.annotated_data_param.label_map_file
        if path and is_regular(path) and (labels := read_label_map(path)) is not None:
            return {item.label: item.display_name or item.name for item in labels.item}
    return {}


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


def label_map_text(labels: proto.LabelMap) -> str:
    """Returns what read_label_map() reads."""
    return text_format.MessageToString(labels, as_utf8=True)
