"""The type stubs in engine/ are up to date: they are what tools/stubs.py makes of the schema and of the extension."""

import importlib.metadata
import importlib.util

import pytest

from tests.mpi import REPO

COMMAND = "python tools/stubs.py"


@pytest.fixture(scope="module")
def stubs():
    spec = importlib.util.spec_from_file_location("stubs", REPO / "tools/stubs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", ["engine/proto/caffe_pb2.pyi", "engine/proto/raw.pyi", "engine/host/_ext.pyi"])
def test_the_stubs_are_up_to_date(stubs, path):
    written = (REPO / path).read_text()
    try:
        header = stubs.header(path)
    except importlib.metadata.PackageNotFoundError as missing:
        pytest.skip(f"needs {missing.name} (make lint)")
    if not written.startswith(header):
        pytest.skip(f"another version wrote {path}: '{written.splitlines()[0]}'")
    assert written == header + stubs.STUBS[path](), f"{path} is out of date: run `{COMMAND}`"


def test_every_stub_is_known(stubs):
    by_hand = {"engine/proto/__init__.pyi"}
    assert {str(path.relative_to(REPO)) for path in (REPO / "engine").rglob("*.pyi")} == {*stubs.STUBS, *by_hand}
