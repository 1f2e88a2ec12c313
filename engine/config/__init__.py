"""Text in: prototext with the place of every field, overrides, upgrades of old formats, suggestions for wrong names."""

from engine.config.config import (
    Config,
    NetConfig,
    SolverConfig,
    add_state,
    expand_ranks,
    parse_net,
    parse_solver,
    read_net,
    read_solver,
    seed_of,
)
from engine.config.solver_nets import SolverNets, files_read_by, net_of_solver, nets_of_solver

__all__ = [
    "Config",
    "NetConfig",
    "SolverConfig",
    "SolverNets",
    "add_state",
    "expand_ranks",
    "files_read_by",
    "net_of_solver",
    "nets_of_solver",
    "parse_net",
    "parse_solver",
    "read_net",
    "read_solver",
    "seed_of",
]
