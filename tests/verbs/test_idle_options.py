"""Options that would have no effect, given the others, are refused by name."""

from __future__ import annotations

import numpy as np
import pytest

from engine.cli import main
from engine.exchange.torch_file import write_state
from engine.verbs.command_line import parse

STATE, KERAS, DATA = "x.pth", "x.keras", "examples/digits/digits_test_lmdb"
TEST = ("test", "--model", "nets/digits.prototxt", "--weights", "a")
LINK = ("--latency", "1", "--bandwidth", "10")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["compare", "a", "b", "--precision", "fp32"], "--precision: without effect without --model; leave it out"),
        (
            ["compare", "a", "b", "--set", "x=1", "--other_model=c", "--phase", "TEST", "--stage", "a", "--level", "1"],
            "--other_model, --phase, --level, --stage, --set: without effect without --model; leave them out",
        ),
        (["compare", "a", "b", "--python_layers"], "--python_layers: without effect without --model; leave it out"),
        (
            ["export", "--torch", "a", "b", "c", "--fold", "--partial"],
            "--fold, --partial: without effect with --torch; leave them out",
        ),
        (["import", STATE, "a", "b", "--shape", "x=1,2"], "--shape: without effect on a file of PyTorch; leave it out"),
        (
            ["import", STATE, "a", "b", "--onto", "--batch_size", "1"],
            "--batch_size: without effect on a file of PyTorch with --onto; leave it out",
        ),
        (["import", KERAS, "a", "b", "--shape", "x=1,2"], "--shape: without effect on a file of Keras; leave it out"),
        (
            ["import", KERAS, "a", "b", "--batch_size", "2"],
            "--batch_size: without effect on a file of Keras; leave it out",
        ),
        (
            ["predict", "--ranks", "2", *LINK, "--profile", "a", "--model", "b", "--iterations", "5", "--set", "x=1"],
            "--model, --iterations, --set: without effect with --profile; leave them out",
        ),
        (
            ["predict", "--ranks", "2", *LINK, "--model", "a", "--images_per_second", "9", "--precision", "bf16"],
            "--precision: without effect with --images_per_second: nothing is measured; leave it out",
        ),
        (["check", "a.prototxt", "--python_layers"], "--python_layers: without effect without --run: no code is run; "
         "leave it out"),
        (
            ["check", "a.prototxt", "--run", "--ranks", "1", "--plot", "x.png"],
            "--ranks, --plot: without effect with --run; leave them out",
        ),
        (
            ["doctor", "--skip_bad_images", "--precision", "bf16", "--python_layers", "--level", "1", "--set", "x=1"],
            "--skip_bad_images, --precision, --python_layers, --level, --set: without effect without --solver; "
            "leave them out",
        ),
        (
            ["average", "a", "b", "c", "--iterations", "5", "--skip_bad_images", "--precision", "bf16", "--set", "x=1"],
            "--iterations, --skip_bad_images, --precision, --set: without effect without --model or --solver; "
            "leave them out",
        ),
        (
            ["average", "a", "b", "c", "--python_layers", "--level", "1", "--stage", "a"],
            "--python_layers, --level, --stage: without effect without --model or --solver; leave them out",
        ),
        (
            [*TEST, "--ap_version", "11point"],
            "--ap_version: without effect on a net without a detector; leave it out",
        ),
        (
            [*TEST, "--flip", "--ap_version", "11point"],
            "--ap_version: without effect with --ensemble, --crops or --flip; leave it out",
        ),
        (
            ["convert_imageset", "a", "b", "--seed", "2"],
            "--seed: without effect without --shuffle or --val_fraction; leave it out",
        ),
        (
            ["convert_imageset", "a", "b", "--quality", "50"],
            "--quality: without effect without --encoded: pixels are stored; leave it out",
        ),
        (
            ["convert_imageset", "a", "b.tar", "--quality", "50", "--encode_type", "png"],
            "--quality: without effect with --encode_type png; leave it out",
        ),
        (
            ["convert_annotations", "a", "b", "c", "--quality", "50"],
            "--quality: without effect without --encoded: pixels are stored; leave it out",
        ),
        (
            ["convert_annotations", "a", "b", "c", "--seed", "2"],
            "--seed: without effect without --shuffle; leave it out",
        ),
        (
            ["convert_video", "a", "b", "--quality", "50", "--encode_type", "png"],
            "--quality: without effect with --encode_type png; leave it out",
        ),
        (
            ["check", DATA, "--run", "--strict", "--stage", "x"],
            "--run, --strict, --stage: without effect on data alone; leave them out",
        ),
    ],
)  # fmt: skip
def test_what_has_no_effect_is_named(arguments, told, tmp_path, capfd):
    write_state(tmp_path / STATE, {"x": np.zeros(1, np.float32)})
    (tmp_path / KERAS).write_bytes(b"")
    assert main([str(tmp_path / each) if each in (STATE, KERAS) else each for each in arguments]) == 1
    assert capfd.readouterr().err.splitlines()[-1] == f"engine: {told}"


def test_what_is_given_is_known_by_its_flag():
    given = parse(["classify", "-model_def", "a", "--weights=b", "--", "--top"]).given
    assert given == {"--model", "--weights"}
