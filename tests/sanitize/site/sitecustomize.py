"""Makes each Python that tests/sanitize/run.py starts load the extension that it compiled instead of engine's."""

import importlib.util
import os
import sys


class Sanitized:
    """Finds the module _ext, in whichever package of engine it is asked for."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.startswith("engine.") and name.endswith("._ext"):
            return importlib.util.spec_from_file_location(name, os.environ["ENGINE_SANITIZED"])
        return None


sys.meta_path.insert(0, Sanitized)
