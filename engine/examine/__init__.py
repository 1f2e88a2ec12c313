"""What looks into nets, solvers and the machine, and leaves nothing trained behind: what a net costs and whether it
runs (check), how fast (time, predict), and whether many ranks compute what one does (verify, doctor)."""
