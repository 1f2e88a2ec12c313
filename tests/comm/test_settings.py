"""Environment variables of MLSL, and which launchers are recognised."""

import pytest
from google.protobuf import text_format

from engine import proto
from engine.comm.factory import settings_of
from engine.comm.link import ALONE, Link, Links
from engine.comm.settings import (
    LocalSteps,
    Reduction,
    comm_settings,
    default_servers,
    exchanges_directly,
    ignored_variables,
)
from engine.comm.world import World
from engine.errors import ConfigError
from engine.host.launch import Launch, detect


def settings(text: str = "", local_rank: int = 0, local_size: int = 1, environ=None, cores=2, links: Links = ALONE):
    """Returns the settings of a comm_param for a rank."""
    param = text_format.Parse(text, proto.CommParameter())
    return comm_settings(param, links, local_rank, local_size, environ or {}, cores)


RECIPE = {"MLSL_NUM_SERVERS": "2", "MLSL_SERVER_AFFINITY": "39,38,43,42"}
GIGABIT, FAST = Link(1e-4, 117e6), Link(2e-6, 10e9)


@pytest.mark.parametrize(("text", "environ"), [("", RECIPE), ("servers: 2 affinity: [39, 38, 43, 42]", {})])
def test_the_recipe_of_the_448_node_run(text, environ):
    assert settings(text, 0, 2, environ).cores == (39, 38)
    assert settings(text, 1, 2, environ).cores == (43, 42)
    assert settings(text, 1, 2, environ).servers == 2


def test_variables_override_the_solver():
    text = "servers: 1 affinity: 7 chunk_mb: 3 priority: true"
    given = settings(text)
    assert (given.servers, given.cores, given.chunk_bytes, given.priority) == (1, (7,), 3 << 20, True)
    environ = {"MLSL_LARGE_MSG_SIZE_MB": "64", "MLSL_LARGE_MSG_CHUNKS": "2", "MLSL_MSG_PRIORITY": "0"}
    given = settings(text, environ=RECIPE | environ, local_size=2)
    assert (given.servers, given.cores, given.chunk_bytes, given.priority) == (2, (39, 38), 32 << 20, False)
    assert settings(environ={"MLSL_LARGE_MSG_CHUNKS": "8"}).chunk_bytes == 16 << 20
    assert settings(environ={"MLSL_LARGE_MSG_SIZE_MB": "64"}).chunk_bytes == 16 << 20


def test_one_list_serves_all_ranks():
    """A list with as many cores as one rank has servers is for each rank of the host."""
    environ = {"MLSL_NUM_SERVERS": "2", "MLSL_SERVER_AFFINITY": "3, 2"}
    assert settings("", 1, 2, environ).cores == (3, 2)


@pytest.mark.parametrize("environ", [{}, {"MLSL_NUM_SERVERS": "2"}, {"MLSL_NUM_SERVERS": "0"}])
def test_asynchronous_ranks_have_one_server(environ):
    assert settings("mode: ASYNC affinity: 5", 1, 2, environ).cores == (5,)
    given = settings("mode: ASYNC affinity: 3 affinity: 4", 1, 2, environ, cores=68)
    assert (given.servers, given.cores) == (1, (4,))


def test_defaults():
    assert settings(cores=68).servers == 4
    assert settings("", 0, 2, cores=24).servers == 2
    assert settings("", 0, 2).cores is None
    assert default_servers(1) == 2
    assert settings().reduction == Reduction() and str(Reduction()) == "float32"


NODE1, NODE2 = tuple(range(64)), tuple(range(16))


@pytest.mark.parametrize(
    ("places", "servers"),
    [
        ([("node1", NODE1), ("node2", NODE2)], 2),
        ([("node1", NODE1), ("node1", NODE1)], 4),
        ([("node1", NODE1)] * 3, 2),
        ([("node1", NODE1[:32]), ("node1", NODE1[32:])], 4),  # bound by the launcher
    ],
)
def test_ranks_agree_about_the_default_number_of_servers(places, servers, monkeypatch):
    monkeypatch.delenv("MLSL_NUM_SERVERS", raising=False)
    world = World()
    world.size, world.local_size, world.places = len(places), 2, lambda: places
    assert settings_of(world, proto.CommParameter()).servers == servers


def test_the_link_decides_how_much_travels_at_a_time():
    alone, near = settings(), settings(links=Links(within=FAST))
    assert alone.bucket_bytes == near.bucket_bytes == 8 << 20 and not near.priority
    slow = settings(links=Links(between=GIGABIT, within=FAST))
    assert slow.bucket_bytes == slow.chunk_bytes == 2 << 20 and slow.priority
    assert settings(links=Links(between=Link(1e-4, 1e6))).bucket_bytes == 256 << 10
    assert settings(links=Links(between=Link(2e-3, 30e6))).bucket_bytes == 4 << 20, "latency must not count"
    assert settings("bucket_mb: 5 priority: false", links=Links(between=GIGABIT)).bucket_bytes == 5 << 20
    bf16 = settings("compression: BF16", links=Links(between=GIGABIT))
    assert bf16.bucket_bytes == bf16.chunk_bytes == 4 << 20, "half as many bytes travel"


def test_how_gradients_travel():
    text = "compression: BF16 error_feedback: true algorithm: HIERARCHICAL"
    reduction = settings(text).reduction
    assert reduction == Reduction(True, True, True)
    assert str(reduction) == "hierarchical, bf16, error feedback"


def test_which_ranks_exchange_directly():
    """Ranks exchange directly if they are few, and each is on a host of its own or all are on one."""
    cases = [(ranks, near) for ranks in (1, 2, 8, 9) for near in (1, 2, 4, 8, 9) if near <= ranks]
    assert [case for case in cases if exchanges_directly(*case)] == [(2, 1), (2, 2), (8, 1), (8, 8)]


def test_how_ranks_keep_together():
    given = settings("sync_every: 3 sync_start: 4 max_staleness: 5 shard_updates: true")
    assert (given.local, given.max_staleness, given.staleness_lr, given.shard_updates) == (None, None, False, True)
    given = settings("mode: LOCAL sync_every: 3 sync_start: 4")
    assert (given.local, given.max_staleness, given.shard_updates) == (LocalSteps(3, 4), None, False)
    given = settings("mode: ASYNC max_staleness: 5 staleness_lr: true")
    assert (given.local, given.max_staleness, given.staleness_lr) == (None, 5, True)


def test_no_servers_need_no_cores():
    assert settings(environ={"MLSL_NUM_SERVERS": "0", "MLSL_SERVER_AFFINITY": "9"}).cores is None
    assert settings("servers: 0 affinity: 9").cores is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("servers: -1", "comm_param: servers: expected 0 or more, got -1"),
        ("bucket_mb: 0", "comm_param: bucket_mb: expected more than 0, got 0"),
        ("chunk_mb: -2", "comm_param: chunk_mb: expected more than 0, got -2"),
        ("watchdog: -1", "comm_param: watchdog: expected seconds, 0 or more, got -1"),
        ("drift_check: -1", "comm_param: drift_check: expected 0 or more, got -1"),
        (
            "shard_updates: true algorithm: HIERARCHICAL",
            "comm_param: shard_updates does not go together with algorithm",
        ),
        ("error_feedback: true", "comm_param: error_feedback needs compression: BF16; without it nothing is lost"),
        ("servers: 2 affinity: 3", r"comm_param: affinity 3 lists 1 cores: expected 2 \(one for each server\)"),
        ("servers: 1 affinity: -3", "comm_param: affinity -3: expected core numbers separated by commas"),
    ],
)
def test_a_bad_value_names_its_field(text, message):
    with pytest.raises(ConfigError, match=message):
        settings(text)


@pytest.mark.parametrize("text", ["four", "-1", "2.5", "²", pytest.param("1" * 5000, id="5000 digits")])
def test_a_malformed_number_names_the_variable(text):
    with pytest.raises(ConfigError, match=rf'MLSL_NUM_SERVERS="{text[:100]}.*": expected a number, 0 or more'):
        settings(environ={"MLSL_NUM_SERVERS": text})


@pytest.mark.parametrize(
    ("variable", "text", "wanted"),
    [("MLSL_MSG_PRIORITY", "2", "from 0 to 1"), ("MLSL_LARGE_MSG_CHUNKS", "0", "1 or more")],
)
def test_a_number_out_of_range_names_the_variable(variable, text, wanted):
    with pytest.raises(ConfigError, match=f'{variable}="{text}": expected a number,? {wanted}'):
        settings(environ={variable: text})


@pytest.mark.parametrize("text", ["a,b", "1,", "1;2", "-1,2"])
def test_a_malformed_list_names_the_variable(text):
    with pytest.raises(ConfigError, match=f'MLSL_SERVER_AFFINITY="{text}": expected core numbers'):
        settings(environ={"MLSL_NUM_SERVERS": "2", "MLSL_SERVER_AFFINITY": text})


def test_variables_that_do_nothing_are_told():
    environ = {"MLSL_NUM_SERVER": "2", "MLSL_HEAP_SIZE_GB": "1", "MLSL_NUM_SERVERS": "2", "HOME": "/"}
    lines = ignored_variables(environ)
    assert lines[0] == "MLSL_HEAP_SIZE_GB is ignored; it does nothing here"
    assert lines[1:] == ["MLSL_NUM_SERVER is ignored; did you mean MLSL_NUM_SERVERS?"]


def test_a_short_list_says_what_is_missing():
    environ = {"MLSL_NUM_SERVERS": "2", "MLSL_SERVER_AFFINITY": "1,2,3"}
    with pytest.raises(ConfigError, match=r"lists 3 cores: expected 2 .* or 4 for the 2 ranks on this host"):
        settings("", 0, 2, environ)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, Launch("mpiexec", 1, 2, 0, 2)),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"}, Launch("Open MPI's mpiexec", 0, 4, 0, 4)),
        ({"PMI_RANK": "3", "PMI_SIZE": "5", "ENGINE_GROUPS": "2,3"}, Launch("mpiexec", 1, 3, 2, 5)),
        ({"PMI_RANK": "3", "PMI_SIZE": "5", "ENGINE_GROUPS": "2,2"}, Launch("mpiexec", 3, 5, 0, 5)),
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8"}, Launch("srun", 3, 8, 0, 8)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, None),  # in a batch script, not under srun
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, None),  # in a shell that srun --pty has started
        ({"PMI_RANK": "²", "PMI_SIZE": "8"}, None),
    ],
)
def test_launchers(environ, expected):
    assert detect(environ) == expected
