"""Makes a net and its weights of another framework's file: an ONNX model (.onnx), a state dictionary of torchvision's
ResNet, VGG, DenseNet, GoogLeNet, Inception-v3 or MobileNet-v2 (.pth, .safetensors), or the weights of a Keras model
(.h5, .keras), for which the net must be there (--onto). The first bytes of a file tell its kind, not its name.
"""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace

from engine.verbs.options import comma_separated, positive

ORDER = 170
SUMMARY = "make a net and its weights of another framework's: ONNX, torchvision, Keras"
EXAMPLES = [
    "engine import mobilenet.onnx mobilenet.prototxt mobilenet.caffemodel",
    "engine import segmenter.onnx net.prototxt net.caffemodel --shape image=1,3,512,512",
    "engine import resnet50.pth resnet50.prototxt resnet50.caffemodel",
    "engine import vgg16.pth nets/vgg16.prototxt vgg16.caffemodel --onto",
]


def named_shape(text: str) -> tuple[str, list[int]]:
    name, equals, dims = text.rpartition("=")
    if not (name and equals and dims):
        raise ArgumentTypeError(f"expected NAME=1,3,224,224, got {text!r}")
    return name, [positive(dim) for dim in comma_separated(dims)]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("source", metavar="FILE", help=".onnx, .pth, .safetensors, .h5 or .keras")
    parser.add_argument("model", metavar="NET", help="the prototxt to write, or, with --onto, the net that is there")
    parser.add_argument("weights", metavar="WEIGHTS", help="the .caffemodel to write")
    parser.add_argument("--onto", action="store_true", help="leave NET as it is, and write weights for it")
    parser.add_argument(
        "--shape",
        type=named_shape,
        action="append",
        default=[],
        metavar="NAME=N,C,H,W",
        help="shape of an input of an ONNX model that leaves it open (repeatable)",
    )
    parser.add_argument("--batch_size", type=positive, help="where it is open (default: 1)")


def run(options: Namespace) -> int:
    from engine.exchange.kinds import KERAS, ONNX, TORCH, kind_of
    from engine.files import check_apart
    from engine.report.log import log, set_up
    from engine.verbs.runtime import refuse_idle

    set_up()
    check_apart(options.weights, options.source, options.model)
    kind = kind_of(options.source)
    if kind != ONNX:
        refuse_idle(options, ("--shape",), f"on a file of {kind}")
    if kind == KERAS or (kind == TORCH and options.onto):
        refuse_idle(options, ("--batch_size",), f"on a file of {kind}{' with --onto' if kind == TORCH else ''}")
    if kind == TORCH:
        from engine.exchange.torch_import import import_torch

        notes = import_torch(
            options.source, options.model, options.weights, onto=options.onto, batch_size=options.batch_size or 1
        )
    elif kind == KERAS:
        from engine.exchange.keras_import import import_keras

        notes = import_keras(options.source, options.model, options.weights, onto=options.onto)
    else:
        from engine.exchange.onnx_import import import_onnx

        notes = import_onnx(
            options.source,
            options.model,
            options.weights,
            shapes=dict(options.shape),
            batch_size=options.batch_size,
            onto=options.onto,
        )
    for note in notes:
        log(f"note: {note}")
    log(f"Wrote {options.weights}" if options.onto else f"Wrote {options.model} and {options.weights}")
    return 0
