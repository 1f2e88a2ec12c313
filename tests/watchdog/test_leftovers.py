"""Files that a killed rank leaves behind are removed, unless another process uses them."""

import fcntl
import json

from engine.watchdog import leftovers
from engine.watchdog.leftovers import Leftovers


def test_what_another_process_uses_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(leftovers, "SECONDS", 0.2)
    lock, copy, partial = tmp_path / "lock", tmp_path / "copy", tmp_path / ".copy.partial"
    lock.touch()
    for folder in (copy, partial):
        folder.mkdir()
        (folder / "a file").touch()
    left = Leftovers()
    left.note(json.dumps([[str(lock), str(copy / "nothere")], [str(copy), str(partial)]]))
    with open(lock) as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        left.remove()
        assert len(list(tmp_path.iterdir())) == 3
    left.remove()
    assert list(tmp_path.iterdir()) == [lock]
    left.remove()
