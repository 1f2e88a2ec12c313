"""What __init__.py makes of the schema when it is loaded, by hand; the messages are tools/stubs.py's."""

from engine.proto import raw as raw
from engine.proto.caffe_pb2 import *  # noqa: F403

REQUIRED: dict[str, list[str]]
