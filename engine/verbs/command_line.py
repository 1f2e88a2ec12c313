"""Reads a command line and runs its verb. What is unknown is answered with the nearest known name."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module

import engine
from engine import verbs
from engine.errors import ConfigError, printable, shortened


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Returns the options of a command line. Raises SystemExit: status 2 for wrong usage, 0 after --help and --version.

    Beside the verb's own the options have `verb`, its name; `arguments`, the command line; `given`, see
    _Parser.given().
    """
    flags = list(arguments).index("--") if "--" in arguments else len(arguments)  # behind it are names only
    words = [*map(_two_dashes, arguments[:flags]), *arguments[flags:]]
    names = verb_names()
    if words and words[0] in names:
        parser = parser_of(words[0])
        words[1:] = parser.without_booleans(words[1:])
        parser.check_flags(words[1:])
        options = parser.parse_args(words[1:])
        options.verb = words[0]
        options.arguments = list(arguments)  # for verbs that start ranks themselves
        options.given = parser.given(words[1:])
        return options
    parser = _overview(names)
    if not words:
        parser.end_with_help()
    if not words[0].startswith("-"):
        near = _nearest(words[0], names) or f"; known: {', '.join(names)}"
        parser.error(f"unknown verb '{words[0]}'{near}")
    parser.check_flags(words[:1])
    parser.parse_args(words[:1])  # ends after --help and --version
    parser.error("the following arguments are required: VERB")


def run(options: argparse.Namespace) -> int:
    """Runs the verb of a command line; returns its exit status. Raises EngineErrors, ConfigError also if several ranks
    run a verb of one rank: each would write the same files."""
    from engine.host.launch import detect  # here, for it takes a while to load

    verb, launch = _module_of(options.verb), detect()
    if launch and launch.size > 1 and not getattr(verb, "RANKS", False):
        raise ConfigError(f"{options.verb} runs on one rank; start it without {launch.launcher}")
    if launch and launch.size < launch.job_size:
        from engine.verbs.runtime import start

        start()  # even if the verb needs no MPI: MPI starts and ends with all ranks of the job
    return verb.run(options)


def verb_names() -> list[str]:
    """Returns the names of the modules of engine.verbs that are verbs."""
    # Not by pkgutil, which loads inspect: that takes half as long as everything else together.
    files = [file for folder in verbs.__path__ for file in os.listdir(folder)]
    return sorted({file[:-3] for file in files if file.endswith(".py")} - {"__init__", *verbs.SHARED})


def _module_of(verb: str):
    return import_module(f"engine.verbs.{verb}")


def _two_dashes(argument: str) -> str:
    """Returns --solver for -solver, which Caffe takes as well."""
    return f"-{argument}" if re.match(r"-[a-z_]{2,}(=|$)", argument) else argument


def _nearest(name: str, known: Iterable[str]) -> str:
    """Returns a tail for a message, such as "; did you mean 'train'?", or ""."""
    import difflib

    known = list(known)
    begun = [each for each in known if each.startswith(name)]
    near = begun or difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    return f"; did you mean '{near[0]}'?" if near else ""


def _is_spokesman() -> bool:
    from engine.host.launch import is_spokesman  # here, for it takes a while to load

    return is_spokesman()


class _Parser(argparse.ArgumentParser):
    """A parser of which only one rank, of all that a launcher has started, says what is wrong."""

    def error(self, message: str):
        if _is_spokesman():
            super().error(shortened(printable(message)))
        self.exit(2)

    def _print_message(self, message, file=None):
        """Prints. That stderr cannot be written does not change the exit status, as it would in some versions of
        Python."""
        try:
            super()._print_message(message, file)
        except OSError:
            if file is sys.stdout:
                raise

    def end_with_help(self):
        """Prints the help to stderr, and exits with the status of wrong usage: nothing was asked for."""
        if _is_spokesman():
            self.print_help(sys.stderr)
        self.exit(2)

    def without_booleans(self, words: Sequence[str]) -> list[str]:
        """Returns a command line in which switches have no value: Caffe's may also be --shuffle=true, --shuffle=false
        and --noshuffle."""
        switches = {name for name, action in self._option_string_actions.items() if action.const is True}
        result = []
        for number, word in enumerate(words):
            if word == "--" or (self._passes_on and not word.startswith("-")):  # names follow, or another verb's words
                return result + list(words[number:])
            flag, _, value = word.partition("=")
            denied = word.startswith("--no") and f"--{word[4:]}" in switches
            if not denied and not (flag in switches and value in ("false", "0")):
                result.append(flag if flag in switches and value in ("true", "1") else word)
        return result

    def given(self, words: Sequence[str]) -> set[str]:
        """Returns the flags that a command line has, by their first names."""
        known = self._option_string_actions
        ahead = words[: words.index("--")] if "--" in words else words
        flags = (word.partition("=")[0] for word in ahead)
        return {known[flag].option_strings[0] for flag in flags if flag in known}

    @property
    def _passes_on(self) -> bool:
        """Whether what follows the first word without a dash is for another verb."""
        return any(action.nargs == argparse.REMAINDER for action in self._actions)

    def check_flags(self, words: Sequence[str]) -> None:
        """Exits at an unknown flag, with the nearest known one. argparse would first complain of arguments that are
        missing, maybe the very one whose flag is misspelt."""
        known = self._option_string_actions
        for word in words:
            if self._passes_on and not word.startswith("-"):  # another verb's words follow
                return
            flag = word.partition("=")[0]
            if word == "--":  # names follow
                return
            if flag in ("--gpu", "--gpus"):
                self.error(f"{flag}: this engine computes on processors, with all cores that it may use; leave it out")
            if flag.startswith("--") and flag not in known:
                self.error(f"unrecognized arguments: {flag}{_nearest(flag, known) or self._without_flags()}")
        required = any(action.required for action in self._actions)
        if words and not words[0].startswith("-") and required and not self._without_flags():
            texts = [action for action in self._actions if action.nargs is None and action.type is None]
            texts.sort(key=lambda action: not action.required)
            near = f"; did you mean '{texts[0].option_strings[0]} {words[0]}'?" if texts else ""
            self.error(f"'{words[0]}' has no flag{near}")

    def _without_flags(self) -> str:
        """Returns a tail for a message, such as "; FILE has no flag", or ""."""
        names = [str(action.metavar or action.dest) for action in self._actions if not action.option_strings]
        return f"; {' and '.join(names)} {'have' if names[1:] else 'has'} no flag" if names else ""


class _HelpFormatter(argparse.HelpFormatter):
    """Fills paragraphs, but leaves examples as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("examples:") else super()._fill_text(text, width, indent)


class _Version(argparse.Action):
    """Prints the version, and exits."""

    def __call__(self, parser, *_):
        print(f"engine {engine.__version__}")
        parser.exit()


def parser_of(verb: str) -> _Parser:
    """Returns the parser of what follows a verb."""
    module = _module_of(verb)
    parser = _Parser(
        prog=f"engine {verb}",
        description=module.__doc__,
        epilog="\n  ".join(["examples:", *module.EXAMPLES]),
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    return parser


def _overview(names: Sequence[str]) -> _Parser:
    """Returns the parser of `engine --help`, which lists the verbs."""
    parser = _Parser(
        prog="engine",
        allow_abbrev=False,
        description="Trains and tests the nets of Caffe's prototxt files, on one rank or, under mpiexec, on many.",
        epilog="engine VERB --help describes a verb. Flags have Caffe's names and may begin with one dash, too.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    listed = parser.add_subparsers(title="verbs", metavar="VERB")
    modules = {name: _module_of(name) for name in names}
    last = float("inf")
    for name in sorted(names, key=lambda name: (getattr(modules[name], "ORDER", last), name)):
        listed.add_parser(name, help=modules[name].SUMMARY)
    return parser
