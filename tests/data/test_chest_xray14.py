"""convert_chestxray14: turns the files of the NIH into lists that are divided by patient, and names what is wrong with
the files."""

import os
import shutil
import zipfile

import numpy as np
import pytest

from engine.cli import main
from engine.config import parse_net
from engine.data.chest_xray14 import LABELS, convert_chestxray14
from engine.data.image_tree import read_list
from engine.errors import ConfigError, DataError
from tests.data.pictures import png

# as in the NIH's file, with the comma at the end
HEADER = "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,OriginalImage[Width,Height],"
FINDINGS = ["No Finding", "Hernia", "Atelectasis|Effusion", "No Finding", "Pleural_Thickening|Effusion"]
PATIENTS, PICTURES = 12, 3  # pictures of each patient
TESTED = (10, 11, 12)  # patients of the test list


def name(patient, number):
    return f"{patient:08d}_{number:03d}.png"


@pytest.fixture
def nih(tmp_path):
    """Makes a folder as the NIH distributes it: the pictures in two folders, the table, the lists."""
    root, rows = tmp_path / "CXR8", []
    lists = {"train_val_list": [], "test_list": []}
    for patient in range(1, PATIENTS + 1):
        for number in range(PICTURES):
            folder = root / f"images_{1 + patient % 2:03d}/images"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name(patient, number)).write_bytes(png(1, 1))
            finding = FINDINGS[(patient + number) % len(FINDINGS)]
            rows.append(f"{name(patient, number)},{finding},{number},{patient},58,2682,2749,")
            lists["test_list" if patient in TESTED else "train_val_list"].append(name(patient, number))
    (root / "Data_Entry_2017.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    for stem, names in lists.items():
        (root / f"{stem}.txt").write_text("\n".join(names))
    return root


def patients(path):
    return {entry.name.split("/")[-1][:8] for entry in read_list(str(path))}


def test_lists_are_divided_by_patient(nih, tmp_path, capfd):
    assert main(["convert_chestxray14", str(nih), str(tmp_path / "out"), "--val_fraction", "0.34"]) == 0
    lists = {part: read_list(str(tmp_path / f"out/{part}.txt")) for part in ("train", "val", "test")}
    assert [len(entries) for entries in lists.values()] == [18, 9, 9]  # of 6, 3 and 3 patients
    whose = [patients(tmp_path / f"out/{part}.txt") for part in lists]
    assert sum(map(len, whose)) == len(set.union(*whose)) == PATIENTS
    assert whose[2] == {f"{patient:08d}" for patient in TESTED}
    assert (tmp_path / "out/labels.txt").read_text().split() == list(LABELS) and len(LABELS) == 14
    first = next(entry for entry in lists["test"] if entry.name.endswith(name(12, 0)))  # "Atelectasis|Effusion"
    assert first.name == "images_001/images/00000012_000.png" and (nih / first.name).exists()
    assert [label for label, there in zip(LABELS, first.labels) if there] == ["Atelectasis", "Effusion"]
    assert "Wrote lists of 36 pictures" in capfd.readouterr().err


def test_work_of_another_process_stays(nih, tmp_path):
    """The partial folder belongs to a process in another container that has the same number as this one."""
    other = tmp_path / f".out.{os.getpid()}.partial"
    other.mkdir()
    assert main(["convert_chestxray14", str(nih), str(tmp_path / "out")]) == 0
    assert other.exists() and (tmp_path / "out").exists()


def test_weights_are_the_shares_of_the_training_pictures(nih, tmp_path):
    found = convert_chestxray14(str(nih), str(tmp_path / "out"), val_fraction=0.34)
    labels = np.array([entry.labels for entry in read_list(str(tmp_path / "out/train.txt"))])
    text = (tmp_path / "out/loss_param.prototxt").read_text()
    net = parse_net(f'layer {{ name: "loss" type: "SigmoidCrossEntropyLoss" {text} }}', "net")
    param = net.message.layer[0].loss_param
    np.testing.assert_allclose(param.negative_weight, labels.mean(0), atol=1e-6)
    np.testing.assert_allclose(param.positive_weight, 1 - labels.mean(0), atol=1e-6)
    assert 0 < labels.mean(0)[LABELS.index("Effusion")] < 1
    assert found.with_label["train"].tolist() == labels.sum(0).tolist()


def test_the_seed_chooses_the_patients_of_val(nih, tmp_path):
    for number, seed in enumerate((1, 1, 2)):
        convert_chestxray14(str(nih), str(tmp_path / f"out{number}"), val_fraction=0.34, seed=seed)
    a, b, c = (patients(tmp_path / f"out{number}/val.txt") for number in range(3))
    assert a == b != c


def test_zip_and_a_table_of_two_columns(nih, tmp_path):
    rows = [line.split(",")[:2] for line in (nih / "Data_Entry_2017.csv").read_text().splitlines()]
    (nih / "Data_Entry_2017.csv").write_text("\ufeff" + "\r\n".join(map(",".join, rows)), encoding="utf-8")
    convert_chestxray14(str(nih), str(tmp_path / "plain"))
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for path in nih.rglob("*.*"):
            archive.write(path, path.relative_to(nih))
    convert_chestxray14(str(tmp_path / "x.zip"), str(tmp_path / "zipped"))
    for part in ("train", "val", "test"):
        assert (tmp_path / f"plain/{part}.txt").read_text() == (tmp_path / f"zipped/{part}.txt").read_text()


def test_missing_pictures(nih, tmp_path):
    shutil.rmtree(nih / "images_001")
    with pytest.raises(DataError, match=r"csv:5: 18 of 36 pictures are not below .*00000002_000.png"):
        convert_chestxray14(str(nih), str(tmp_path / "out"))
    found = convert_chestxray14(str(nih), str(tmp_path / "out"), skip_missing=True)
    assert found.missing == 18 and sum(found.images.values()) == 18
    shutil.rmtree(nih / "images_002")
    with pytest.raises(DataError, match="36 of 36 pictures are not below"):
        convert_chestxray14(str(nih), str(tmp_path / "none"), skip_missing=True)


def replaced(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    "file, old, new, said",
    [
        ("Data_Entry_2017.csv", "Finding Labels", "Labels", "csv:1: expected a column 'Finding Labels', got Image"),
        ("Data_Entry_2017.csv", "Hernia", "Hernie", "csv:2: 'Hernie' is none of the 14 labels; did you mean 'Hernia'"),
        ("Data_Entry_2017.csv", "|Effusion", "|No Finding", "csv:3: 'No Finding' does not go with other labels"),
        ("Data_Entry_2017.csv", ",0,1,58,2682,2749,", "", "csv:2: expected 4 columns or more, got 2"),
        ("Data_Entry_2017.csv", name(1, 1), name(1, 0), "csv:3: 00000001_000.png is there twice, first in line 2"),
        ("Data_Entry_2017.csv", name(1, 0), "", "csv:2: expected the name of a picture in 'Image Index', got ''"),
        ("train_val_list.txt", name(1, 0), "", "csv:2: 00000001_000.png is neither in .*train_val_list.txt nor in"),
        (
            "test_list.txt",
            name(10, 0),
            f"{name(10, 0)}\n{name(99, 0)}",
            "test_list.txt: 00000099_000.png is not in .*csv",
        ),
        ("test_list.txt", name(10, 0), name(1, 0), "test_list.txt: 00000001_000.png is also in .*train_val_list.txt"),
    ],
)
def test_wrong_files(nih, tmp_path, file, old, new, said):
    replaced(nih / file, old, new)
    with pytest.raises(DataError, match=said):
        convert_chestxray14(str(nih), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_patient_in_both_lists(nih, tmp_path):
    replaced(nih / "train_val_list.txt", name(1, 0) + "\n", "")
    replaced(nih / "test_list.txt", name(10, 0), f"{name(10, 0)}\n{name(1, 0)}")
    with pytest.raises(DataError, match="csv:3: patient 1 has pictures in both lists"):
        convert_chestxray14(str(nih), str(tmp_path / "out"))


def test_what_else_cannot_be(nih, tmp_path):
    out = str(tmp_path / "out")
    with pytest.raises(ConfigError, match=r"val_fraction: expected 0 to 0\.99, got 1"):
        convert_chestxray14(str(nih), out, val_fraction=1)
    with pytest.raises(DataError, match="leaves none of 9 patients"):
        convert_chestxray14(str(nih), out, val_fraction=0.98)
    (nih / "copy").mkdir()
    shutil.copy(nih / "images_002/images" / name(1, 0), nih / "copy")
    with pytest.raises(DataError, match=r"00000001_000\.png is there twice"):
        convert_chestxray14(str(nih), out)
    shutil.rmtree(nih / "copy")
    (nih / "test_list.txt").write_text("x.png")
    replaced(nih / "train_val_list.txt", "\n", "\n" + "\n".join(name(p, n) for p in TESTED for n in range(3)) + "\n")
    with pytest.raises(DataError, match=r"test_list\.txt: it names none of the pictures"):
        convert_chestxray14(str(nih), out)
    (nih / "Data_Entry_2017.csv").write_text(HEADER)
    with pytest.raises(DataError, match="it has no rows below its header"):
        convert_chestxray14(str(nih), out)
    (nih / "Data_Entry_2017.csv").unlink()
    with pytest.raises(DataError, match=r"expected Data_Entry_2017\.csv there; name it with --csv"):
        convert_chestxray14(str(nih), out)
    (tmp_path / "out").mkdir()
    with pytest.raises(DataError, match="out exists already"):
        convert_chestxray14(str(nih), out)
