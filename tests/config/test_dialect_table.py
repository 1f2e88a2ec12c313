"""docs/dialects.md says what the table in the code says."""

import importlib.util

from engine.config.dialects import rows
from tests.mpi import REPO


def test_the_document_is_up_to_date():
    spec = importlib.util.spec_from_file_location("dialect_table", REPO / "tools/dialect_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = module.text()
    written = REPO / "docs/dialects.md"
    assert written.is_file() and written.read_text() == text, "run `python tools/dialect_table.py`"
    assert all(f"`{row.field}`" in text for row in rows().values())
