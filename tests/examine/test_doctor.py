"""engine doctor on one rank: it says which MPI several would use."""

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
