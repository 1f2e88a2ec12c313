"""What bash and zsh complete."""

import shutil
import subprocess
import sys

import pytest

from engine.verbs.command_line import verb_names
from tests.mpi import REPO

BASH = """
eval "$({python} -m engine completion bash)"
complete_words() {{
    COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _engine; echo "${{COMPREPLY[@]}}"
}}
{lines}
"""


def completed(*lines, shell="bash"):
    program = BASH.format(python=sys.executable, lines="\n".join(f"complete_words {line}" for line in lines))
    done = subprocess.run([shell, "-c", program], cwd=REPO, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return [line.split() for line in done.stdout.splitlines()]


def test_bash():
    verbs, trains, flags, values, files = completed(
        'engine ""', "engine tr", "engine train --sn", 'engine train --precision ""', 'engine train --solver ""'
    )
    assert {*verb_names(), "--help", "--version"} == {*verbs}
    assert trains == ["train"] and flags == ["--snapshot"] and values == ["fp32", "bf16"]
    assert files == []  # bash then looks for files


@pytest.mark.skipif(not shutil.which("zsh"), reason="needs zsh")
def test_zsh():
    program = (
        f'autoload -U compinit && compinit -u; eval "$({sys.executable} -m engine completion zsh)"; whence _engine'
    )
    done = subprocess.run(["zsh", "-fc", program], cwd=REPO, capture_output=True, text=True)
    assert done.stdout.strip() == "_engine" and done.stderr == ""
