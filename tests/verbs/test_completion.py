"""Completion of the command line in bash and zsh."""

import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time

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
    """Returns the words that bash offers for each line."""
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
    assert files == []  # bash completes names of files itself


@pytest.mark.skipif(not shutil.which("zsh"), reason="needs zsh")
def test_zsh_completes_what_is_typed(tmp_path):
    set_up = (
        f'autoload -U compinit && compinit -u -d {tmp_path}/dump; eval "$({sys.executable} -m engine completion zsh)"'
    )
    typed = {
        "engine convert_i": "convert_imageset",
        "engine train --sn": "--snapshot",
        "engine train --precision b": "bf16",
    }
    shell, terminal = pty.fork()
    if shell == 0:
        os.chdir(REPO)
        os.execvpe("zsh", ["zsh", "-fi"], {**os.environ, "TERM": "vt100", "COLUMNS": "120", "PS1": "$ "})
    try:
        seen = said(terminal, f"{set_up}; echo rea''dy\n", "ready")
        for words, whole in typed.items():
            seen += said(terminal, f"{words}\t", whole[len(words.split()[-1]) :])
            seen += said(terminal, "\x15", "")  # Ctrl-U deletes the line
    finally:
        os.kill(shell, signal.SIGKILL)
        os.waitpid(shell, 0)
        os.close(terminal)
    assert "command not found" not in seen, seen


def said(terminal, keys, expected):
    """Types keys, and reads until the terminal shows `expected`; returns what was read."""
    os.write(terminal, keys.encode())
    seen, begin = "", time.monotonic()
    while expected not in seen:
        assert time.monotonic() - begin < 60, f"{keys!r}: {seen!r}"
        if select.select([terminal], [], [], 1)[0]:
            seen += os.read(terminal, 4096).decode(errors="replace")
    return seen
