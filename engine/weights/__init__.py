"""Files of weights and state, in the formats of BVLC's Caffe: written whole or not at all.

    blobs = read_caffemodel("x.caffemodel")              # {"conv1": [float32 (20, 1, 5, 5), float32 (20,)], ...}
    write_caffemodel("y.caffemodel", net.message, blobs)
    state = read_solverstate("x.solverstate")            # SolverState

A name that ends in .h5 is written in HDF5; files are read by what is in them.
"""

from engine.weights.files import read_caffemodel, read_solverstate, write_caffemodel, write_solverstate
from engine.weights.state import SolverState

__all__ = ["SolverState", "read_caffemodel", "read_solverstate", "write_caffemodel", "write_solverstate"]
