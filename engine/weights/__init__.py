"""Reads and writes files of weights and state in the formats of BVLC's Caffe. A file is written whole or not at all.

    blobs = read_caffemodel("x.caffemodel")              # {"conv1": [float32 (20, 1, 5, 5), float32 (20,)], ...}
    write_caffemodel("y.caffemodel", net.message, blobs)
    state = read_solverstate("x.solverstate")            # SolverState

A file whose name ends in .h5 is written in HDF5. What is in a file, not its name, tells how it is read.
"""

from engine.weights.files import read_caffemodel, read_solverstate, write_caffemodel, write_solverstate
from engine.weights.state import SolverState

__all__ = ["SolverState", "read_caffemodel", "read_solverstate", "write_caffemodel", "write_solverstate"]
