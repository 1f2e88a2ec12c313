"""Writes text with a trained net of deploy.prototxt: a byte at a time, each drawn by its probability.

python examples/text/sample.py text_iter_3000.caffemodel --start "The net "
"""

import argparse
import sys
from pathlib import Path

import numpy as np

import engine.caffe as caffe
from engine.errors import EngineError

HERE = Path(__file__).resolve().parent


def sample(net, start, length, temperature, draw):
    """Returns `start` and `length` bytes more. The LSTM keeps its state from one forward to the next, until cont is
    0."""
    text = bytearray(start)
    for step in range(len(start) + length - 1):
        net.blobs["text"].data[...] = text[step]
        net.blobs["cont"].data[...] = step > 0
        net.forward()
        if step + 1 < len(start):
            continue
        scores = net.blobs["scores"].data.ravel() / temperature
        chances = np.exp(scores.astype(np.float64) - scores.max())
        text.append(draw.choice(256, p=chances / chances.sum()))
    return bytes(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", help="a .caffemodel")
    parser.add_argument("--net", default=str(HERE / "deploy.prototxt"), help="(default: deploy.prototxt beside this)")
    parser.add_argument("--start", default="\n", help="the first bytes (default: a line end)")
    parser.add_argument("--length", type=int, default=300, help="bytes to write (default: 300)")
    parser.add_argument("--temperature", type=float, default=0.7, help="below 1 for likelier text (default: 0.7)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if not options.start or options.temperature <= 0:
        parser.error("expected a --start of one byte or more and a --temperature above 0")
    try:
        net = caffe.Net(options.net, options.weights, caffe.TEST)
    except EngineError as error:
        sys.exit(str(error))
    draw = np.random.default_rng(options.seed)
    written = sample(net, options.start.encode(), options.length, options.temperature, draw)
    print(written.decode(errors="replace"))


if __name__ == "__main__":
    main()
