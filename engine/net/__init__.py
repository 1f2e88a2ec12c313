"""A net that can run: a graph lowered to a program, with parameters in arenas."""

from engine.graph.prepare import PASSES, prepare
from engine.net.blobs import BlobView, Placed
from engine.net.net import ALL, Counters, Net
from engine.net.options import DEFAULT, NetOptions

__all__ = ["ALL", "DEFAULT", "PASSES", "BlobView", "Counters", "Net", "NetOptions", "Placed", "prepare"]
