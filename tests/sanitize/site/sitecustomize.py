"""Puts the extension that tests/sanitize/run.py compiled in the place of engine's, in every Python that it starts."""

import importlib.util
import os
import sys


class Sanitized:
    """Finds engine's module _ext, wherever in engine it is."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.startswith("engine.") and name.endswith("._ext"):
            return importlib.util.spec_from_file_location(name, os.environ["ENGINE_SANITIZED"])
        return None


sys.meta_path.insert(0, Sanitized)
