"""A net that can run: a graph lowered to a program, with parameters in arenas."""

from engine.graph.prepare import PASSES, prepare
from engine.net.blobs import BlobView, Placed
from engine.net.net import ALL, WATCHED, Net

__all__ = ["ALL", "PASSES", "WATCHED", "BlobView", "Net", "Placed", "prepare"]
