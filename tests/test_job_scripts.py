"""The job scripts of docs/cluster.md, with stand-ins for what starts ranks: when they start a run again."""

import os
import re
import subprocess

import pytest

from tests.mpi import REPO

DONE, STOPPED = "I1 solver.py:1] Optimization Done.", "I1 solver.py:1] Optimization stopped early."
ERROR, FAILED = "engine: [rank 1] a.prototxt: not found (exit status 1)", "engine: rank 1 (pid 7 on b) died"
LOST = "engine: [rank 0] MPI has failed: gone (exit status 3)"
# A launcher's stand-in. It prints what was given for its number of start, and ends with that status.
STARTS = """#!/bin/bash
number=$(ls "$FOLDER"/start.* 2> /dev/null | wc -l)
touch "$FOLDER/start.$number"
for word in "$@"; do if [[ $word == --output=* ]]; then exec > "${word#--output=}" 2>&1; fi; done
IFS='|' read -r status text <<< "$(sed -n "$((number + 1))p" "$FOLDER/starts")"
echo "$text"
exit $status
"""


def script(word: str) -> str:
    """Returns the script of docs/cluster.md that has this word."""
    blocks = re.findall(r"```sh\n(#!/bin/bash\n.*?)```", (REPO / "docs/cluster.md").read_text(), re.DOTALL)
    (found,) = [block for block in blocks if word in block]
    return found


def run(folder, name: str, starts: list[tuple[int, str]], **environ: str) -> tuple[int, int, str]:
    """Runs a script.

    Returns:
        Its status, how often it has started ranks so far, and what it has asked of scontrol.
    """
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    for launcher in ("srun", "mpiexec"):
        (programs / launcher).write_text(STARTS)
    (programs / "scontrol").write_text('#!/bin/bash\necho "$@" >> "$FOLDER/asked"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    (folder / "starts").write_text("".join(f"{status}|{text}\n" for status, text in starts))
    (folder / "asked").write_text("")
    variables = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "FOLDER": str(folder), **environ}
    done = subprocess.run(["bash", "-c", script(name)], cwd=folder, env=variables, capture_output=True, text=True)
    assert not done.stderr, done.stderr
    return done.returncode, len(list(folder.glob("start.*"))), (folder / "asked").read_text().strip()


@pytest.mark.parametrize(
    "start, status, again",
    [
        ((0, DONE), 0, False),
        ((0, STOPPED), 0, True),
        ((137, ERROR), 1, False),
        ((137, FAILED), 137, True),
        ((137, LOST), 3, True),
        ((1, ERROR), 1, False),
    ],
)
def test_slurm_queues_again_what_may_succeed(tmp_path, start, status, again):
    job = {"SLURM_JOB_ID": "5", "SLURM_CPUS_PER_TASK": "24"}
    assert run(tmp_path, "#SBATCH", [start], **job) == (status, 1, "requeue 5" if again else "")


def test_slurm_reads_the_log_of_this_start_alone(tmp_path):
    job = {"SLURM_JOB_ID": "5", "SLURM_CPUS_PER_TASK": "24"}
    starts = [(137, ERROR), (0, STOPPED), (137, FAILED), (0, DONE)]
    asked = [run(tmp_path, "#SBATCH", starts, **job, SLURM_RESTART_COUNT=str(number)) for number in range(4)]
    assert [each[0] for each in asked] == [1, 0, 137, 0]
    assert [each[2] for each in asked] == ["", "requeue 5", "requeue 5", ""]
    assert run(tmp_path, "#SBATCH", [(137, FAILED)] * 5, **job, SLURM_RESTART_COUNT="10") == (137, 5, "")


@pytest.mark.parametrize(
    "starts, status, count",
    [
        ([(0, DONE)], 0, 1),
        ([(9, FAILED), (9, LOST), (0, DONE)], 0, 3),
        ([(9, FAILED), (9, ERROR), (0, DONE)], 1, 2),
        ([(9, FAILED)] * 12, 9, 11),
    ],
)
def test_pbs_tries_again_what_may_succeed(tmp_path, starts, status, count):
    job = {"PBS_O_WORKDIR": str(tmp_path), "PBS_JOBID": "6.server"}
    assert run(tmp_path, "#PBS", starts, **job) == (status, count, "")
