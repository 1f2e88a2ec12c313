"""The command line's verbs and their arguments. Imports nothing heavy, so that --help is quick."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

from engine.host.launch import is_spokesman
from engine.verbs.examine_arguments import ADD as ADD_EXAMINE
from engine.verbs.options import add_budget, add_running, add_skip, add_verb, comma_separated, positive, seconds
from engine.verbs.tools_arguments import ADD as ADD_TOOLS


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of a command line, `verb` among them. Exits with status 2 where it is wrong, 0 after --help."""
    options = _parser().parse_args([_two_dashes(argument) for argument in arguments])
    options.arguments = list(arguments)  # for verbs that start ranks of themselves
    return options


def _two_dashes(argument: str) -> str:
    """Caffe takes -solver as well as --solver."""
    return f"-{argument}" if re.match(r"-[a-z_]{2,}(=|$)", argument) else argument


class _Parser(argparse.ArgumentParser):
    """Of all ranks that a launcher has started, the first says what is wrong."""

    def error(self, message: str):
        if is_spokesman():
            super().error(message)
        self.exit(2)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="engine",
        allow_abbrev=False,
        description="Trains and tests the nets of Caffe's prototxt files, on one rank or, under mpiexec, on many.",
        epilog="engine VERB --help describes a verb. Flags have Caffe's names and may begin with one dash, too.",
    )
    verbs = parser.add_subparsers(title="verbs", dest="verb", metavar="VERB", required=True)
    for add in (
        _add_train,
        _add_test,
        *ADD_EXAMINE,
        _add_convert_imageset,
        _add_compute_image_mean,
        *ADD_TOOLS,
    ):
        add(verbs)
    return parser


def _add_train(verbs) -> None:
    verb = add_verb(
        verbs,
        "train",
        "train a net, or continue training it",
        "Trains the net that a solver file names: from scratch, from the weights of an earlier training (--weights) or "
        "from a snapshot (--snapshot, --resume auto). Under mpiexec, every rank takes its share of the global batch: "
        "batch_size in the net is per rank. SIGINT and SIGTERM stop after the current iteration, with a snapshot.",
        "engine train --solver solvers/digits.prototxt\n"
        "mpiexec -n 2 engine train --solver solvers/digits.prototxt --set max_iter=100\n"
        "engine train --solver solver.prototxt --snapshot net_iter_1000.solverstate\n"
        "engine train --solver collapse.prototxt --weights net_iter_7638.caffemodel\n"
        "engine train --solver solver.prototxt --ranks 4 --max_restarts 10",
    )
    verb.add_argument("--solver", required=True, metavar="FILE", help="the solver, a prototxt")
    _add_start(verb)
    effects = ("stop", "snapshot", "none")
    verb.add_argument("--sigint_effect", choices=effects, default="stop", help="what SIGINT does (default: stop)")
    verb.add_argument(
        "--sighup_effect", choices=effects, default="snapshot", help="what SIGHUP does (default: snapshot)"
    )
    verb.add_argument(
        "--watchdog",
        type=seconds,
        metavar="SECONDS",
        help="end the run, and report where every rank is, when a rank makes no progress for this long; 0: never "
        "(default: ENGINE_WATCHDOG, else the solver's comm_param, else 60)",
    )
    verb.add_argument("--timeline", metavar="FILE", help="write a Chrome trace of a few iterations of all ranks")
    verb.add_argument(
        "--layer_times",
        action="store_true",
        help="end with a table of each layer's compute, communication and wait times",
    )
    add_budget(verb)
    add_skip(verb)
    add_running(verb)


def _add_start(verb) -> None:
    """Where training starts from, and who starts it."""
    verb.add_argument(
        "--resume",
        choices=["auto"],
        help="continue from the newest complete snapshot, with the same global batch on any number of ranks; where "
        "there is none, start as without this flag",
    )
    verb.add_argument(
        "--ranks", type=positive, metavar="N", help="start N ranks on this host, by the mpiexec found there"
    )
    verb.add_argument(
        "--max_restarts",
        type=positive,
        default=0,
        metavar="N",
        help="restart after a crash with --resume auto, at most N times (one rank, or --ranks)",
    )
    start = verb.add_mutually_exclusive_group()
    start.add_argument("--snapshot", metavar="FILE", help="a .solverstate to continue from")
    start.add_argument(
        "--weights",
        type=comma_separated,
        default=[],
        metavar="A,B",
        help=".caffemodel files to start from, matched by layer name",
    )


def _add_test(verbs) -> None:
    verb = add_verb(
        verbs,
        "test",
        "score a net with given weights",
        "Runs a net in phase TEST and prints the averages of its outputs: over the whole test set, each sample exactly "
        "once, or over --iterations batches. Under mpiexec the ranks share the batches; the results stay the same.",
        "engine test --model nets/digits.prototxt --weights examples/digits/digits_iter_600.caffemodel\n"
        "engine test --model net.prototxt --weights net.caffemodel --iterations 100",
    )
    verb.add_argument("--model", required=True, metavar="FILE", help="the net, a prototxt")
    verb.add_argument(
        "--weights", type=comma_separated, required=True, metavar="A,B", help=".caffemodel files, matched by layer name"
    )
    verb.add_argument("--iterations", type=positive, metavar="N", help="batches to run (default: the whole set, once)")
    verb.add_argument("--json", metavar="FILE", help="also write the averages as JSON ('-': standard output)")
    add_skip(verb)
    add_running(verb)


def _add_convert_imageset(verbs) -> None:
    verb = add_verb(
        verbs,
        "convert_imageset",
        "make an LMDB of images",
        "Writes the images of ROOT, a folder or a .zip (or a folder inside one: data.zip/train), to a new LMDB. LIST "
        "has a line 'relative/path label' for each image; without it, the folders in ROOT are the classes, numbered in "
        "alphabetical order.",
        "engine convert_imageset cifar10.zip/cifar10/train cifar10_train_lmdb --shuffle\n"
        "engine convert_imageset images/ train.txt train_lmdb --encoded --resize_height 256 --resize_width 256",
    )
    verb.add_argument("root", metavar="ROOT", help="a folder or a .zip")
    verb.add_argument(
        "paths", nargs="+", metavar="[LIST] DB", help="the list of images, if there is one; the LMDB to create"
    )
    verb.add_argument("--shuffle", action="store_true", help="write the images in a random order")
    verb.add_argument("--seed", type=int, default=1, help="seed of --shuffle (default: 1)")
    verb.add_argument("--resize_height", type=int, default=0, metavar="N", help="0: keep each image's height (default)")
    verb.add_argument("--resize_width", type=int, default=0, metavar="N", help="0: keep each image's width (default)")
    verb.add_argument("--gray", action="store_true", help="store one channel")
    verb.add_argument("--encoded", action="store_true", help="store image files (JPEG, PNG) instead of pixels")
    verb.add_argument(
        "--encode_type",
        default="",
        metavar="KIND",
        help="format of --encoded: jpg, png, bmp (default: each file's own)",
    )
    verb.add_argument(
        "--skip_bad_images", action="store_true", help="leave out images that cannot be decoded, and count them"
    )


def _add_compute_image_mean(verbs) -> None:
    verb = add_verb(
        verbs,
        "compute_image_mean",
        "average the images of an LMDB",
        "Writes the mean image of an LMDB as a .binaryproto for transform_param.mean_file, and prints the mean of each "
        "channel for mean_value.",
        "engine compute_image_mean cifar10_train_lmdb mean.binaryproto",
    )
    verb.add_argument("db", metavar="DB", help="the LMDB")
    verb.add_argument("out", nargs="?", metavar="OUT", help="the .binaryproto to write (default: print only)")
