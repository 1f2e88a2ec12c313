"""Draws what a trained generator makes: a grid of samples, from the net's phase TEST. Several blobs stand beside each
other: what a video's generator has seen, what was to follow, and what it has made.
"""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace

from engine.verbs.options import add_common, add_consent, comma_separated, uint32, up_to_1000

ORDER = 135
SUMMARY = "draw what a trained generator makes"
EXAMPLES = [
    "engine generate dcgan_iter_19550.caffemodel generator.prototxt made samples.png",
    "engine generate video_iter_600.caffemodel generator.prototxt past,future,made clips.png --count 8",
]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "weights", type=comma_separated, metavar="WEIGHTS", help=".caffemodel files, separated by commas"
    )
    parser.add_argument("model", metavar="NET", help="the generator's net, a prototxt")
    parser.add_argument("blobs", type=comma_separated, metavar="BLOBS", help="names of blobs, separated by commas")
    parser.add_argument("target", metavar="OUT", help="the picture: .png or .jpg")
    parser.add_argument("--count", type=up_to_1000, default=64, metavar="N", help="samples to draw (default: 64)")
    parser.add_argument("--seed", type=uint32, default=1, metavar="N", help="of the noise (default: 1)")
    parser.add_argument(
        "--range", type=_span, default=(-1.0, 1.0), metavar="A,B", help="black and white (default: --range=-1,1)"
    )
    add_consent(parser)
    add_common(parser)


def _span(text: str) -> tuple[float, float]:
    try:
        low, high = map(float, text.split(","))
        if low < high < float("inf") and low > -float("inf"):
            return low, high
    except ValueError:
        pass
    raise ArgumentTypeError(f"expected two numbers, the lower first, such as -1,1; got {text!r}")


def run(options: Namespace) -> int:
    from engine.examine.generate import generate
    from engine.examine.preview import check_name, save
    from engine.files import check_writable
    from engine.report.log import log, set_up
    from engine.verbs.runtime import asked_net

    set_up()
    check_name(options.target)
    check_writable(options.target)
    config = asked_net(options, options.model)
    sheet = generate(config, options.weights, options.blobs, options.count, options.range, options.seed)
    save(sheet, options.target)
    log(f"Wrote {options.count} samples of {', '.join(options.blobs)} to {options.target}")
    return 0
