"""Checks and measurements of nets, solvers and the machine, without training: what a net costs and whether it runs
(check), how fast (time, predict), and whether many ranks compute the same as one (verify, doctor)."""
