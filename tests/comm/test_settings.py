"""MLSL's environment variables, and which launchers are recognised."""

import pytest

from engine.comm.launch import Launch, detect
from engine.comm.settings import default_servers, server_settings
from engine.errors import ConfigError


def test_the_recipe_of_the_448_node_run():
    environ = {"MLSL_NUM_SERVERS": "2", "MLSL_SERVER_AFFINITY": "39,38,43,42"}
    assert server_settings(0, 2, environ).cores == (39, 38)
    assert server_settings(1, 2, environ).cores == (43, 42)
    assert server_settings(1, 2, environ).servers == 2


def test_one_list_serves_all_ranks():
    environ = {"MLSL_NUM_SERVERS": "2", "MLSL_SERVER_AFFINITY": "3, 2"}
    assert server_settings(1, 2, environ).cores == (3, 2)


def test_defaults():
    assert server_settings(0, 1, {}, cores=68).servers == 4
    assert server_settings(0, 2, {}, cores=48).servers == 2
    assert server_settings(0, 2, {}, cores=2).cores is None
    assert default_servers(1) == 2


def test_no_servers_need_no_cores():
    assert server_settings(0, 1, {"MLSL_NUM_SERVERS": "0", "MLSL_SERVER_AFFINITY": "9"}).cores is None


@pytest.mark.parametrize("text", ["four", "-1", "2.5"])
def test_a_malformed_number_names_the_variable(text):
    with pytest.raises(ConfigError, match=f'MLSL_NUM_SERVERS="{text}": expected a number, 0 or more'):
        server_settings(environ={"MLSL_NUM_SERVERS": text})


@pytest.mark.parametrize("text", ["a,b", "1,", "1;2", "-1,2"])
def test_a_malformed_list_names_the_variable(text):
    with pytest.raises(ConfigError, match=f'MLSL_SERVER_AFFINITY="{text}": expected core numbers'):
        server_settings(environ={"MLSL_NUM_SERVERS": "2", "MLSL_SERVER_AFFINITY": text})


def test_a_short_list_says_what_is_missing():
    environ = {"MLSL_NUM_SERVERS": "2", "MLSL_SERVER_AFFINITY": "1,2,3"}
    with pytest.raises(ConfigError, match=r"lists 3 cores: expected 2 .* or 4 for the 2 ranks on this host"):
        server_settings(0, 2, environ)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, Launch("mpiexec", 1, 2)),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"}, Launch("Open MPI's mpiexec", 0, 4)),
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8"}, Launch("srun", 3, 8)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, None),  # inside a batch script, not under srun
    ],
)
def test_launchers(environ, expected):
    assert detect(environ) == expected
