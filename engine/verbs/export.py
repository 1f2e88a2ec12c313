"""Writes a net and its weights in the format of another framework. --onnx: an ONNX model of the net deployed, phase
TEST without labels and losses, whose batch is dynamic. --torch: a state dictionary of PyTorch, .safetensors by that
suffix, else as torch.save writes it.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from engine.verbs.options import add_common

ORDER = 160
SUMMARY = "write a trained net for other frameworks: ONNX, PyTorch"
EXAMPLES = [
    "engine export --onnx nets/resnet50.prototxt resnet50.caffemodel resnet50.onnx",
    "engine export --onnx --fold net.prototxt x.caffemodel x.onnx",
    "engine export --torch net.prototxt x.caffemodel x.pth",
]


def add_arguments(parser: ArgumentParser) -> None:
    formats = parser.add_mutually_exclusive_group(required=True)
    formats.add_argument("--onnx", action="store_true", help="write an ONNX model (pip install prototxt-engine[onnx])")
    formats.add_argument("--torch", action="store_true", help="write a state dictionary of PyTorch")
    parser.add_argument("model", metavar="NET", help="the net, a prototxt")
    parser.add_argument("weights", metavar="WEIGHTS", help="its .caffemodel")
    parser.add_argument("target", metavar="OUT", help="the file to write: .onnx, or .pth, .safetensors")
    parser.add_argument(
        "--fold", action="store_true", help="ONNX: fold BatchNorm and Scale into the weights of the layers before them"
    )
    parser.add_argument(
        "--partial", action="store_true", help="ONNX: end the model before layers that it cannot express"
    )
    add_common(parser)


def run(options: Namespace) -> int:
    import os

    from engine.errors import ConfigError
    from engine.exchange.kinds import ONNX, SUFFIXES, TORCH
    from engine.files import check_apart
    from engine.report.log import log, set_up
    from engine.verbs.runtime import asked_net, refuse_idle

    set_up()
    if options.torch:
        refuse_idle(options, ("--fold", "--partial"), "with --torch")
    check_apart(options.target, options.model, options.weights)
    kind, suffix = TORCH if options.torch else ONNX, os.path.splitext(options.target)[1]
    if suffix not in SUFFIXES[kind]:
        found = f"'{suffix}'" if suffix else "a name without a suffix"
        raise ConfigError(f"expected a name in {', '.join(SUFFIXES[kind])} for {kind}, got {found}", options.target)
    config = asked_net(options, options.model)
    if options.onnx:
        from engine.exchange.onnx_export import export_onnx

        notes = export_onnx(config, options.weights, options.target, fold=options.fold, partial=options.partial)
    else:
        from engine.exchange.torch_export import export_torch

        notes = export_torch(config, options.weights, options.target)
    for note in notes:
        log(f"note: {note}")
    log(f"Wrote {options.target}")
    return 0
