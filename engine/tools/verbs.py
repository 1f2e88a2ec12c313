"""The tools' verbs as the command line calls them: each takes its options and returns an exit status."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable


def upgrade_net_proto_text(options: Namespace) -> int:
    from engine.tools.upgrade_proto import upgrade_net_text

    return _upgrade(options, upgrade_net_text, "NetParameter text proto")


def upgrade_net_proto_binary(options: Namespace) -> int:
    from engine.tools.upgrade_proto import upgrade_net_binary

    return _upgrade(options, upgrade_net_binary, "NetParameter binary proto")


def upgrade_solver_proto_text(options: Namespace) -> int:
    from engine.tools.upgrade_proto import upgrade_solver_text

    return _upgrade(options, upgrade_solver_text, "SolverParameter text proto")


def _upgrade(options: Namespace, upgrade: Callable[[str, str], list[str]], kind: str) -> int:
    from engine.report.log import log, set_up

    set_up()
    for note in upgrade(options.source, options.target) or [f"File already in latest proto format: {options.source}"]:
        log(note)
    log(f"Wrote upgraded {kind} to {options.target}")
    return 0


VERBS = {
    verb.__name__: verb
    for verb in (
        upgrade_net_proto_text,
        upgrade_net_proto_binary,
        upgrade_solver_proto_text,
    )
}
