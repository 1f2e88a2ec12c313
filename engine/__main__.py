"""Runs `python -m engine VERB ...` as `engine VERB ...`. engine starts itself by the path of this file: see launch.py.

In both cases Python puts a folder first on its import path, the current one or this file's. It is removed: a ./numpy.py
beside the data must not be imported.
"""

import sys

if not getattr(sys.flags, "safe_path", sys.flags.isolated):  # python -P leaves the folder out, from Python 3.11 on
    del sys.path[0]

if __spec__ is None:  # started by path: load this engine, even if Python would find another first
    import os.path
    from importlib.util import module_from_spec, spec_from_file_location

    _package = os.path.join(os.path.dirname(os.path.abspath(__file__)), "__init__.py")
    _spec = spec_from_file_location("engine", _package)
    if _spec is not None and _spec.loader is not None:
        sys.modules["engine"] = module_from_spec(_spec)
        _spec.loader.exec_module(sys.modules["engine"])

if __name__ == "__main__":
    import signal

    # Until main() handles interrupts there is nothing to bring to an end: they end Python as they end any program.
    caught = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if caught:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.argv[1:] == ["--trial"]:  # of `engine check --run`
        from engine.host.startup import collect_late

        collect_late()
        from engine.examine.trial import main
    else:
        from engine.cli import main
    if caught:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
