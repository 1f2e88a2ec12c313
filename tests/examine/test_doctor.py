"""`engine doctor` on one rank, which says which MPI several ranks would use."""

import pytest

from engine.cli import main
from engine.comm.world import World
from engine.examine import doctor
from tests.data.pictures import image_bytes, random_pixels
from tests.mpi import run_ranks


def test_one_rank_says_what_is_installed(monkeypatch):
    monkeypatch.setattr(doctor, "mpi_library", lambda: "MPICH Version: 5.0.2")
    monkeypatch.setattr(doctor, "mpiexec", lambda: "/opt/bin/mpiexec")
    found = doctor.doctor(World())
    assert found["MPI"] == "MPICH Version: 5.0.2 is installed, started by /opt/bin/mpiexec; one rank does not use it"
    assert "MPICH Version: 5.0.2 is installed" in doctor.to_text(found)
    monkeypatch.setattr(doctor, "mpiexec", lambda: None)
    assert "without an mpiexec in PATH" in doctor.doctor(World())["MPI"]
    monkeypatch.setattr(doctor, "mpi_library", lambda: None)
    assert doctor.doctor(World())["MPI"].startswith("none: pip install mpi4py and mpich")


NET = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "own" type: "Python" bottom: "data" top: "own"
  python_param { module: "layer_of_doctor" layer: "Same" } }
layer { name: "ip" type: "InnerProduct" bottom: "own" top: "ip" inner_product_param { num_output: 4 } }
layer { name: "loss" type: "EuclideanLoss" bottom: "ip" bottom: "ip" top: "loss" }
"""
LAYER = """
import caffe


class Same(caffe.Layer):
    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)
"""


def test_a_solver_is_read_as_training_reads_it(tmp_path, monkeypatch, capsys):
    """The net is that of this rank, and has its Python layers."""
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "1")
    monkeypatch.setenv("ENGINE_PYTHON_LAYERS", "1")
    (tmp_path / "net_0_of_1.prototxt").write_text(NET)
    (tmp_path / "layer_of_doctor.py").write_text(LAYER)
    solver = tmp_path / "solver.prototxt"
    solver.write_text('net: "net_%#_of_%*.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 3')
    assert main(["doctor", "--solver", str(solver)]) == 0
    assert "of 2 parameters, the same on all ranks" in capsys.readouterr().out


NET_OF_PICTURES = """
layer { name: "data" type: "Data" top: "data" top: "label" data_param { source: "pictures" batch_size: 2 } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 4 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.mpi)])
def test_what_the_run_skips_is_skipped(tmp_path, monkeypatch, ranks):
    monkeypatch.chdir(tmp_path)
    for name, content in {"a": b"no picture", "b": image_bytes(random_pixels(1))}.items():
        (tmp_path / "pictures" / name).mkdir(parents=True)
        (tmp_path / "pictures" / name / "0.png").write_bytes(content)
    (tmp_path / "net.prototxt").write_text(NET_OF_PICTURES)
    for name in "ab":
        (tmp_path / name).write_text(
            f'net: "net.prototxt" base_lr: 1 lr_policy: "fixed" max_iter: 2 snapshot_prefix: "{name}"'
        )
    for solvers in ("a", "a,b"):
        command = ["-m", "engine", "doctor", "--solver", solvers]
        done = run_ranks(ranks, command)
        assert done.returncode == 1 and "'a/0.png': cannot decode 10 bytes as an image" in done.stderr, done.stderr
        done = run_ranks(ranks, [*command, "--skip_bad_images"])
        assert done.returncode == 0 and "of 2 parameters, the same on all ranks" in done.stdout, done.stderr
        assert ("of 1 source, the same on all ranks" in done.stdout) == (ranks > 1)


@pytest.mark.mpi
def test_a_source_is_that_of_so_many_ranks(tmp_path, monkeypatch):
    """%* in a source stands for the number of ranks."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pictures_2/a").mkdir(parents=True)
    (tmp_path / "pictures_2/a/0.png").write_bytes(image_bytes(random_pixels(1, 12, 16)))
    (tmp_path / "net.prototxt").write_text(NET_OF_PICTURES.replace("pictures", "pictures_%*"))
    (tmp_path / "solver.prototxt").write_text('net: "net.prototxt" base_lr: 1 lr_policy: "fixed" max_iter: 2')
    done = run_ranks(2, ["-m", "engine", "doctor", "--solver", "solver.prototxt"])
    assert done.returncode == 0 and "is not here" not in done.stderr, done.stderr


def test_a_shape_that_is_assumed_is_told(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.prototxt").write_text(NET_OF_PICTURES)
    (tmp_path / "solver.prototxt").write_text('net: "net.prototxt" base_lr: 1 lr_policy: "fixed" max_iter: 2')
    assert main(["doctor", "--solver", "solver.prototxt"]) == 0
    told = "net.prototxt:2:1: source pictures is not here; nothing else tells the size of its items, assuming 3 x 224 x"
    assert told in capfd.readouterr().err
