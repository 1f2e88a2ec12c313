"""Looks at nets, solvers, data and the machine: what a net costs and whether it runs (check, summarize), how fast
(time), what it sees (preview), what it makes (generate), where two differ (compare), which rate to begin with
(find_rate), and whether many ranks compute the same as one (verify, doctor)."""
