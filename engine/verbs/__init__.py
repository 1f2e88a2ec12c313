"""The verbs of the command line: `engine train` is engine/verbs/train.py. A new file here is a new verb.

Every module of this package is a verb of its own name, except those named in SHARED. It holds

    its docstring               what `engine VERB --help` says first
    SUMMARY                     its line in `engine --help`
    EXAMPLES                    commands that its --help ends with
    RANKS                       True if several ranks may run it; without it, the verb refuses more than one
    ORDER                       its place in `engine --help`; without it, the verb comes last
    add_arguments(parser)       adds its arguments to an argparse.ArgumentParser
    run(options) -> int         does the work; returns the exit status, raises EngineErrors

`engine --help` imports them all. So a verb imports the standard library and engine.verbs.options when it is loaded, and
everything else when it runs.
"""

SHARED = {"command_line", "options", "runtime"}  # the parser; arguments and helpers of run() that verbs share
