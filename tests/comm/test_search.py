"""The search of autotune, with steps whose length is computed by a formula."""

from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from engine import proto
from engine.comm.search import SLOW_AFTER, Search, as_text, fields_of, free_fields, from_json, to_json
from engine.comm.settings import LEAST_BYTES, MB, CommSettings, Reduction
from engine.config import parse_solver

BEGIN = CommSettings(servers=2, bucket_bytes=8 * MB, chunk_bytes=8 * MB)


class Ranks:
    """Has what the search asks of a World: the number of ranks, and that on this host."""

    def __init__(self, size, local_size):
        self.size, self.local_size = size, local_size


class Told(Search):
    """Counts in `told` how often it was told the length of a step."""

    told = 0


def searched(seconds, settings=BEGIN, given="", ranks=(4, 2), cores=16, **environ):
    """Searches to the end, with steps of seconds(settings); returns the search."""
    param = parse_solver(f'net: "x" comm_param {{ {given} }}', "x").message.comm_param
    search = Told(settings, fields_of(settings, param, Ranks(*ranks), cores, environ))
    while not search.is_over:
        search.tell(seconds(search.current), 0.0)
        search.told += 1
        assert search.told < 3000
    return search


def best_is(**wanted):
    """Returns a function of settings that gives the seconds of a step: 1, less a tenth for each field that is as
    wanted."""

    def seconds(settings):
        found = {
            "servers": settings.servers,
            "bucket": settings.bucket_bytes // MB,
            "chunk": settings.chunk_bytes // MB,
            "priority": settings.priority,
            "hierarchical": settings.reduction.hierarchical,
        }
        return 1 - 0.1 * sum(found[name] == value for name, value in wanted.items())

    return seconds


@pytest.mark.parametrize(
    "wanted",
    [
        {"servers": 4, "bucket": 2, "chunk": 2, "priority": True, "hierarchical": True},
        {"servers": 1, "bucket": 32, "chunk": 8, "priority": False, "hierarchical": False},
        {"servers": 2, "bucket": 8, "chunk": 8, "priority": True, "hierarchical": False},
    ],
)
def test_the_fastest_settings_are_found(wanted):
    search = searched(best_is(**wanted))
    assert best_is(**wanted)(search.best) == pytest.approx(0.5)
    assert search.current == search.best and len({trial.settings for trial in search.trials}) <= 20


def test_what_is_not_clearly_faster_does_not_count():
    assert searched(lambda settings: 1 - 0.019 * (settings.servers == 4)).best == BEGIN
    assert searched(lambda settings: 1 - 0.03 * (settings.servers == 4)).best == replace(BEGIN, servers=4)


def test_a_machine_that_changes_its_speed_is_no_choice():
    """Each round times the best settings again beside each value of a field. So no settings win because steps become
    shorter once, or by two percent from each trial to the next."""
    for speed in (lambda trial: 0.5 if trial > 3 else 1.0, lambda trial: 0.98**trial):
        calls = count()
        assert searched(lambda settings, speed=speed, calls=calls: speed(next(calls))).best == BEGIN


def test_a_value_that_wins_is_followed():
    """The best buckets are the smallest, and each step towards them is a little better."""
    search = searched(lambda settings: 1 + 0.1 * np.log2(settings.bucket_bytes / MB * 8 + 1) + 0.2 * settings.servers)
    assert search.best.bucket_bytes == LEAST_BYTES and search.best.servers == 1


def test_noise_hides_no_winner_and_makes_none():
    """On a shared machine, each step is off by 4%, and one in twenty takes half as much again. In 38 of 40 runs the
    choice must be the best by the formula."""
    wanted = {"servers": 1, "bucket": 2, "chunk": 2, "priority": True, "hierarchical": False}
    true = best_is(**wanted)
    best = 0
    for seed in range(40):
        random = np.random.default_rng(seed)

        def seconds(settings, random=random):
            return true(settings) * (1 + 0.04 * random.standard_normal()) * (1.5 if random.random() < 0.05 else 1)

        best += true(searched(seconds).best) < 0.51
    assert best >= 38


def test_settings_that_are_slow_leave_early():
    search = searched(lambda settings: 1 + (settings != BEGIN), given="chunk_mb: 8 servers: 2 algorithm: PLAIN")
    assert search.told == 2 * (SLOW_AFTER * 3 + SLOW_AFTER * 2) // 2  # the trials of buckets, and those of priority


def test_the_search_ends_where_everything_else_always_wins():
    """However the lengths of steps turn out, no values are tried for ever."""
    param = parse_solver('net: "x" comm_param { }', "x").message.comm_param
    search = Told(BEGIN, fields_of(BEGIN, param, Ranks(4, 2), 16, {}))
    while not search.is_over:
        search.tell(0.9 if search.current != search.best else 1.0, 0.0)
        search.told += 1
        assert search.told < 3000


@pytest.mark.parametrize(
    "given, environ, field",
    [
        ("servers: 2", {}, "servers"),
        ("", {"MLSL_NUM_SERVERS": "2"}, "servers"),
        ("bucket_mb: 8", {}, "bucket_bytes"),
        ("chunk_mb: 8", {}, "chunk_bytes"),
        ("bucket_mb: 8", {"MLSL_LARGE_MSG_CHUNKS": "3"}, "chunk_bytes"),
        ("priority: false", {}, "priority"),
        ("", {"MLSL_MSG_PRIORITY": "0"}, "priority"),
        ("algorithm: PLAIN", {}, "reduction"),
    ],
)
def test_what_is_given_stays(given, environ, field):
    search = searched(lambda settings: 1.0, given=given, **environ)
    values = {getattr(trial.settings, field) for trial in search.trials}
    if given == "chunk_mb: 8":
        assert values == {2 * MB, 8 * MB}  # in a bucket of 2 MB, a chunk is no larger
    else:
        assert values == {getattr(BEGIN, field)}
    others = {"servers", "bucket_bytes", "priority"} - {field}
    assert any(len({getattr(trial.settings, other) for trial in search.trials}) > 1 for other in others)


def test_pinned_servers_stay_and_few_cores_have_few():
    pinned = replace(BEGIN, cores=(3, 4))
    assert {trial.settings.servers for trial in searched(lambda s: 1.0, pinned).trials} == {2}
    assert {trial.settings.servers for trial in searched(lambda s: 1.0, cores=1).trials} == {1, 2}


@pytest.mark.parametrize("ranks", [(2, 2), (4, 1)])
def test_hosts_of_one_rank_and_one_host_have_no_hierarchy(ranks):
    assert not any(trial.settings.reduction.hierarchical for trial in searched(lambda s: 1.0, ranks=ranks).trials)


def test_nothing_to_try():
    given = "servers: 2 bucket_mb: 8 chunk_mb: 8 priority: false algorithm: PLAIN"
    search = searched(lambda s: 1.0, given=given)
    assert search.is_over and not search.trials


def test_the_choice_is_a_solvers_text():
    text = as_text(replace(BEGIN, bucket_bytes=3_000_001, priority=True))
    found = parse_solver(f'net: "x" {text}', "x").message.comm_param
    assert int(found.bucket_mb * MB + 0.5) == 3_000_001 and found.chunk_mb == 8 and found.servers == 2
    assert found.priority and found.algorithm == proto.CommParameter.PLAIN


FOUND = CommSettings(4, None, 2 * MB, MB, True, Reduction(hierarchical=True))


def kept(given="", settings=BEGIN, ranks=(4, 2), **environ):
    """Returns the settings with which a run goes on from a snapshot that holds FOUND."""
    param = parse_solver(f'net: "x" comm_param {{ {given} }}', "x").message.comm_param
    return from_json(to_json(FOUND), settings, free_fields(settings, param, Ranks(*ranks), environ))


def test_what_was_found_is_kept_but_for_what_is_given_now():
    """What the solver, the environment or other hosts demand now goes before what the snapshot holds."""
    assert kept() == FOUND
    assert kept("bucket_mb: 8 servers: 2") == replace(FOUND, servers=2, bucket_bytes=8 * MB)
    assert kept(ranks=(2, 2)) == replace(FOUND, reduction=Reduction())
    pinned = replace(BEGIN, cores=(2, 3))
    assert kept(settings=pinned, MLSL_MSG_PRIORITY="0") == replace(FOUND, servers=2, cores=(2, 3), priority=False)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"servers": 0}', '{"servers": "2"}'])
def test_what_was_not_written_so_is_refused(text):
    with pytest.raises(ValueError):
        from_json(text, BEGIN, ["servers"])
