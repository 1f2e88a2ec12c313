#!/usr/bin/env python3
"""Trains a net of engine with PyTorch, as a rival in tools/bench/train.py. Prints one line of JSON.

    python tools/bench/torch_train.py --net FOLDER --threads 2 --precision bf16     # of describe_net.py
    python -m torch.distributed.run --standalone --nproc-per-node 2 tools/bench/torch_train.py ...    # DDP over gloo

A step is forward, loss, backward and SGD with momentum and weight decay; in phase TEST it is forward and loss in
inference mode. For bf16 it uses torch.autocast. The first loss, and in fp32 the length of each parameter's first
gradient, must be those that engine computes from the same weights and batch. --layout best tries channels last and
contiguous, and keeps the faster. Under torch.distributed.run the batch is per rank.
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path

import torch
from own_process import peak_memory, process_age
from torch import nn
from torch_net import TorchNet

LAYOUTS = {"channels_last": torch.channels_last, "contiguous": torch.contiguous_format}
TOLERANCE = {"fp32": 1e-3, "bf16": 5e-2}  # how far the first losses may differ, as a fraction
OF_GRADIENTS = 1e-2  # the same for the lengths of the first gradients, in fp32


class Training:
    """One net in one memory layout, with a batch that stays the same."""

    def __init__(self, options, layout):
        self.bf16, self.trains = options.precision == "bf16", options.phase == "TRAIN"
        net = TorchNet(Path(options.net), LAYOUTS[layout], self.trains)
        if self.bf16 and not self.trains:
            net.narrow()
        self.module, self.batch_size = net, net.batch_size
        ranks = int(os.environ.get("WORLD_SIZE", 1))
        self.net = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True) if ranks > 1 else net
        self.update = torch.optim.SGD(net.parameters(), lr=1e-6, momentum=0.9, weight_decay=1e-4, fused=True)

    def step(self) -> float:
        """Does a step, and returns its seconds."""
        begin = time.perf_counter()
        if self.trains:
            self.update.zero_grad(set_to_none=True)
            loss = self.loss()
            loss.backward()
            self.update.step()
        else:
            with torch.inference_mode():
                loss = self.loss()
        seconds = time.perf_counter() - begin
        if not self.module.drops:
            self._compare(loss)
        return seconds

    def loss(self):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            return self.net()

    def _compare(self, loss) -> None:
        """Compares the first step, for which Dropout is off, with engine's, and turns Dropout on. Raises SystemExit if
        they differ."""
        net, precision = self.module, "bf16" if self.bf16 else "fp32"
        net.drops = True

        def check(what: str, found: float, wanted: float, tolerance: float) -> None:
            if abs(found - wanted) > tolerance:
                raise SystemExit(f"the {what} is {found:.6g} here and {wanted:.6g} in engine")

        if net.wanted is not None:
            check("first loss", loss.item(), net.wanted, TOLERANCE[precision] * abs(net.wanted))
        if precision == "fp32" and net.wanted_gradients:
            least = 1e-3 * max(net.wanted_gradients.values())  # the gradient of a bias before a norm is only rounding
            for name, found in net.gradients().items():
                wanted = net.wanted_gradients[name]
                check(f"first gradient of {name}", found, wanted, OF_GRADIENTS * wanted + least)


def chosen_layout(options) -> str:
    """Returns the faster layout, by the best of three steps in each, after one that does not count."""
    seconds = {}
    for layout in LAYOUTS:
        training = Training(options, layout)
        seconds[layout] = min([training.step() for _ in range(4)][1:])
    return min(seconds, key=seconds.__getitem__)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", required=True, metavar="FOLDER", help="what describe_net.py has written")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--phase", choices=["TRAIN", "TEST"], default="TRAIN")
    parser.add_argument("--layout", choices=[*LAYOUTS, "best"], default="channels_last")
    parser.add_argument("--iterations", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
    layout = chosen_layout(options) if options.layout == "best" else options.layout
    training = Training(options, layout)
    training.step()
    to_first_iteration = process_age()
    training.step()  # the allocator's pages are in place after it
    steps = [training.step() for _ in range(options.iterations)]
    if int(os.environ.get("RANK", 0)) == 0:
        result = {
            "images_per_second": ranks * training.batch_size / statistics.median(steps),
            "peak_memory_bytes": peak_memory(),
            "to_first_iteration_s": to_first_iteration,
            "layout": layout,
            "version": torch.__version__,
        }
        print(json.dumps(result), flush=True)
    if ranks > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
