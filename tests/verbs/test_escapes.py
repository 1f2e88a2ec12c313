"""Names in files of strangers do not reach the terminal as they are: no control sequences, no lines of their own."""

import unicodedata

import pytest

from tests.verbs.test_cli import engine

ODD = r"\033]0;owned\007\033[31m\nFORGED\342\200\256"  # escapes of a prototxt: a title, a colour, a line, right to left
NET = f"""
name: "net{ODD}"
layer {{ name: "d{ODD}" type: "DummyData" top: "x{ODD}" dummy_data_param {{ shape {{ dim: 2 dim: 3 }} }} }}
layer {{ name: "ip{ODD}" type: "InnerProduct" bottom: "x{ODD}" top: "y{ODD}" inner_product_param {{ num_output: 2 }} }}
layer {{ name: "r" type: "Reduction" bottom: "y{ODD}" top: "l{ODD}" loss_weight: 1 }}
"""
FILE = "net\x1b[31m\nFORGED.prototxt"
COMMANDS = {
    "check": ["check", FILE],
    "check --run": ["check", "--run", FILE],
    "check of a missing file": ["check", f"no{FILE}"],
    "summarize": ["summarize", FILE],
    "draw_net": ["draw_net", FILE, "x.dot"],
    "time": ["time", "--model", FILE, "--iterations", "1"],
    "train": ["train", "--solver", "solver.prototxt"],
    "wrong usage": ["check", f"--no{FILE}"],
    "a verb": [f"no{FILE}"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_that_a_terminal_obeys_is_printed(command, tmp_path):
    (tmp_path / FILE).write_text(NET)
    quoted = FILE.replace("\x1b", "\\033").replace("\n", "\\n")
    (tmp_path / "solver.prototxt").write_text(
        f'net: "{quoted}" base_lr: 0.1 lr_policy: "fixed" max_iter: 2 display: 1 snapshot_after_train: false'
    )
    done = engine(*COMMANDS[command], cwd=tmp_path)
    printed = done.stdout + done.stderr + "".join(path.read_text() for path in tmp_path.glob("*.dot"))
    assert "FORGED" in printed
    assert "Traceback" not in printed
    odd = {each for each in printed if unicodedata.category(each) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    assert odd <= {"\n"}
    assert not [line for line in printed.splitlines() if line.startswith("FORGED")]
