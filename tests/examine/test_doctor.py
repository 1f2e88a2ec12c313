"""engine doctor on one rank: it says which MPI several would use."""

from engine.cli import main
from engine.comm.world import World
from engine.examine import doctor


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
    """The net of the rank, with its Python layers."""
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "1")
    monkeypatch.setenv("ENGINE_PYTHON_LAYERS", "1")
    (tmp_path / "net_0_of_1.prototxt").write_text(NET)
    (tmp_path / "layer_of_doctor.py").write_text(LAYER)
    solver = tmp_path / "solver.prototxt"
    solver.write_text('net: "net_%#_of_%*.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 3')
    assert main(["doctor", "--solver", str(solver)]) == 0
    assert "of 2 parameters, the same on all ranks" in capsys.readouterr().out
