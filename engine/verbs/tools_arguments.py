"""Command-line arguments of the verbs in engine/tools. Imports nothing heavy."""

from __future__ import annotations

import argparse

from engine.verbs.options import add_common, add_verb, comma_separated, positive


def _add_upgrade_net_proto_text(verbs) -> None:
    verb = add_verb(
        verbs,
        "upgrade_net_proto_text",
        "write an old net in the current format",
        "Reads a net's prototxt in any of Caffe's formats (V0, V1, inputs without a layer, renamed fields) and writes "
        "it in the current one. Comments are lost.",
        "engine upgrade_net_proto_text old.prototxt new.prototxt",
    )
    _add_in_out(verb, "the net, a prototxt")


def _add_upgrade_net_proto_binary(verbs) -> None:
    verb = add_verb(
        verbs,
        "upgrade_net_proto_binary",
        "write an old caffemodel in the current format",
        "Reads a caffemodel in any of Caffe's formats and writes it in the current one, with unchanged weights.",
        "engine upgrade_net_proto_binary old.caffemodel new.caffemodel",
    )
    _add_in_out(verb, "the weights, a .caffemodel")


def _add_upgrade_solver_proto_text(verbs) -> None:
    verb = add_verb(
        verbs,
        "upgrade_solver_proto_text",
        "write an old solver in the current format",
        "Reads a solver's prototxt and writes it with `type` in place of the older `solver_type`. Comments are lost.",
        "engine upgrade_solver_proto_text old_solver.prototxt new_solver.prototxt",
    )
    _add_in_out(verb, "the solver, a prototxt")


def _add_in_out(verb, what: str) -> None:
    verb.add_argument("source", metavar="IN", help=what)
    verb.add_argument("target", metavar="OUT", help="the file to write")


def _add_draw_net(verbs) -> None:
    verb = add_verb(
        verbs,
        "draw_net",
        "draw a net",
        "Writes a picture of a net in one phase: a box for each layer, together with the in-place layers that follow "
        "it, and an arrow for each blob, with its shape. Needs pygraphviz (pip install engine[plot]), except for .dot.",
        "engine draw_net nets/googlenet.prototxt googlenet.svg\n"
        "engine draw_net net.prototxt net.png --rankdir LR --phase TEST",
    )
    verb.add_argument("model", metavar="NET", help="the net, a prototxt")
    verb.add_argument("target", metavar="OUT", help="the picture: .svg, .png, .pdf, or .dot for graphviz's language")
    verb.add_argument(
        "--rankdir", choices=["TB", "LR"], default="TB", help="draw downwards or to the right (default: TB)"
    )
    _add_phase(verb)
    add_common(verb)


def _add_summarize(verbs) -> None:
    verb = add_verb(
        verbs,
        "summarize",
        "list the layers of a net",
        "Prints a line for each layer of a net in one phase: its options, the shapes of its tops, its parameters with "
        "their lr_mult and decay_mult, its FLOPs. The data is not needed. engine check finds the errors in a net and "
        "shows its memory.",
        "engine summarize nets/resnet50.prototxt\nengine summarize net.prototxt --phase TEST",
    )
    verb.add_argument("model", metavar="NET", help="the net, a prototxt")
    _add_phase(verb)
    add_common(verb)


def _add_parse_log(verbs) -> None:
    verb = add_verb(
        verbs,
        "parse_log",
        "turn a run's log into CSV",
        "Reads the log of a training run, engine's or Caffe's, and writes DIR/LOG.train and DIR/LOG.test (.test1, ... "
        "for further test nets) with columns NumIters, Seconds, LearningRate, each output, and the smoothed loss.",
        "engine parse_log run.log .   # of `engine train --solver solver.prototxt 2> run.log`",
    )
    verb.add_argument("log", metavar="LOG", help="what training wrote to stderr, or Caffe's log file")
    verb.add_argument("folder", metavar="DIR", help="where the CSV files go")
    verb.add_argument("--delimiter", default=",", metavar="CHARACTER", help="between columns (default: a comma)")


def _add_plot_log(verbs) -> None:
    verb = add_verb(
        verbs,
        "plot_log",
        "plot the curves of runs from their logs",
        "Plots training and test loss, the other test results and the learning rate over the iterations, for one log "
        "or several in the same plot. Needs matplotlib: pip install engine[plot].",
        "engine plot_log curve.png run.log\nengine plot_log both.svg fp32.log bf16.log",
    )
    verb.add_argument("target", metavar="OUT", help="the picture: .png, .svg or .pdf")
    verb.add_argument("logs", metavar="LOG", nargs="+", help="logs of training runs, engine's or Caffe's")


def _add_extract_features(verbs) -> None:
    verb = add_verb(
        verbs,
        "extract_features",
        "write the blobs of a trained net, sample by sample",
        "Runs the net's phase TEST over its data and writes the named blobs: each to an LMDB of Datums (float_data), "
        "or all of them to one .npz, with an array of shape (samples, ...) under each blob's name.",
        "engine extract_features x.caffemodel net.prototxt fc7,prob fc7_lmdb,prob_lmdb 10 lmdb\n"
        "engine extract_features x.caffemodel net.prototxt fc7 features.npz 10",
    )
    verb.add_argument("weights", type=comma_separated, metavar="WEIGHTS", help=".caffemodel files, separated by commas")
    verb.add_argument("model", metavar="NET", help="the net, a prototxt")
    verb.add_argument("blobs", type=comma_separated, metavar="BLOBS", help="names of blobs, separated by commas")
    verb.add_argument("outputs", type=comma_separated, metavar="OUT", help="an LMDB for each blob, or one .npz")
    verb.add_argument("batches", type=positive, metavar="BATCHES", help="number of batches to run")
    verb.add_argument("db_type", nargs="?", choices=["lmdb"], help="Caffe's word for what OUT is; lmdb is the only one")
    add_common(verb)


def _add_classify(verbs) -> None:
    verb = add_verb(
        verbs,
        "classify",
        "print the most likely classes of images",
        "Prints the most likely classes of each image. The net may be a deploy.prototxt with an Input layer, or the "
        "training net: then images are preprocessed like its TEST data (crop, mean, scale), unless options say "
        "otherwise.",
        "engine classify --model deploy.prototxt --weights x.caffemodel --mean_file mean.binaryproto "
        "--labels synset_words.txt cat.jpg\n"
        "engine classify --model nets/resnet50.prototxt --weights resnet50.caffemodel cat.jpg dog.jpg",
    )
    verb.add_argument("images", metavar="IMAGE", nargs="+", help="JPEG, PNG, ...")
    verb.add_argument("--model", "--model_def", required=True, metavar="FILE", help="the net, a prototxt")
    verb.add_argument(
        "--weights",
        "--pretrained_model",
        type=comma_separated,
        required=True,
        metavar="A,B",
        help=".caffemodel files, matched by layer name",
    )
    mean = verb.add_mutually_exclusive_group()
    mean.add_argument("--mean_file", default="", metavar="FILE", help="a mean image to subtract, a .binaryproto")
    mean.add_argument("--mean_value", type=_numbers, default=[], metavar="B,G,R", help="a mean for each channel")
    verb.add_argument("--labels", metavar="FILE", help="names of the classes, one per line (default: their numbers)")
    verb.add_argument("--input_scale", type=float, metavar="X", help="factor applied after the mean is subtracted")
    verb.add_argument(
        "--images_dim",
        type=_two_numbers,
        metavar="H,W",
        help="size to resize to before the centre crop (default: that of the net's data, else of its input)",
    )
    verb.add_argument("--top", type=positive, default=5, metavar="N", help="classes to print (default: 5)")
    add_common(verb)


def _add_compare(verbs) -> None:
    verb = add_verb(
        verbs,
        "compare",
        "find where two trained nets, or two runs of one net, begin to differ",
        "Compares two caffemodels, or the histories of two solverstates, array by array, and names the first that "
        "differs. With --model, also compares the tops of every layer in one forward pass on the same synthetic input. "
        "The exit status is 1 if anything differs by more than the tolerance.",
        "engine compare a_iter_100.caffemodel b_iter_100.caffemodel\n"
        "engine compare a.caffemodel b.caffemodel --model net.prototxt --tolerance 1e-5\n"
        "engine compare x.caffemodel x.caffemodel --model net.prototxt --precision bf16 --tolerance 0.02",
    )
    verb.add_argument("files", nargs=2, metavar="FILE", help="two .caffemodel or two .solverstate files")
    verb.add_argument("--model", metavar="FILE", help="the net, a prototxt: also compare what it computes")
    verb.add_argument("--other_model", metavar="FILE", help="the net of the second weights (default: the same)")
    verb.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="of the second net (default: fp32)")
    verb.add_argument(
        "--tolerance",
        type=float,
        default=0.0,
        metavar="X",
        help="relative to the largest value of an array (default: 0)",
    )
    _add_phase(verb, default="TEST")
    add_common(verb)


def _add_phase(verb, default: str = "TRAIN") -> None:
    verb.add_argument(
        "--phase", choices=["TRAIN", "TEST"], default=default, help=f"phase of the net (default: {default})"
    )


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers separated by commas, got {text!r}") from None


def _two_numbers(text: str) -> tuple[int, int]:
    parts = text.split(",")
    if len(parts) != 2 or not all(part.isdecimal() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f"expected height,width, got {text!r}")
    return int(parts[0]), int(parts[1])


ADD = (
    _add_draw_net,
    _add_summarize,
    _add_classify,
    _add_extract_features,
    _add_compare,
    _add_parse_log,
    _add_plot_log,
    _add_upgrade_net_proto_text,
    _add_upgrade_net_proto_binary,
    _add_upgrade_solver_proto_text,
)
