"""Names of classes: reads and writes SSD's labelmap.prototxt."""

from __future__ import annotations

from google.protobuf import text_format

from engine import proto
from engine.config.config import NetConfig, read_text
from engine.config.prototext import fill, scan
from engine.errors import ConfigErrors
from engine.files import is_regular


def label_names(config: NetConfig) -> dict[int, str]:
    """Returns the classes' names by label, from the label_map_file of the net's data; {} if there is no such file.

    Raises ConfigError or ConfigErrors if it cannot be read."""
    for layer in config.message.layer:
        path = layer.annotated_data_param.label_map_file
        if path and is_regular(path) and (labels := read_label_map(path)) is not None:
            return {item.label: item.display_name or item.name for item in labels.item}
    return {}


def read_label_map(path: str) -> proto.LabelMap | None:
    """Returns the label map in a file, None if the file holds something else. Raises ConfigError or ConfigErrors."""
    nodes = scan(read_text(path), path)
    if not nodes or any(node.name != "item" for node in nodes):
        return None
    labels = proto.LabelMap()
    errors = fill(labels, nodes, path)
    if errors:
        raise ConfigErrors(errors)
    return labels


def label_map_text(labels: proto.LabelMap) -> str:
    """Returns a label map as the text that read_label_map() reads."""
    return text_format.MessageToString(labels, as_utf8=True)
