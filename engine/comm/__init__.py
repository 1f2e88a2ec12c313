"""The only place that speaks MPI: the ranks, buckets of gradients, and the strategies that reduce and apply them.

It knows floats and offsets, never layers. Nothing here imports mpi4py until `world()` finds more than one rank.
"""
