#!/usr/bin/env python3
"""PyTorch training a net of torch_nets.py: the rival that tools/bench/train.py runs. Prints one line of JSON.

    python tools/bench/torch_train.py --net resnet50 --batch_size 32 --threads 2 --precision bf16
    python -m torch.distributed.run --standalone --nproc-per-node 2 tools/bench/torch_train.py ...    # DDP over gloo

A step is forward, loss, backward and SGD with momentum and weight decay, in phase TEST forward and loss alone, in
inference mode; bf16 is torch.autocast. --layout best tries channels last and contiguous and keeps the faster; under
torch.distributed.run the batch is per rank.
"""

import argparse
import json
import os
import statistics
import time

import torch
from own_process import peak_memory, process_age
from torch import nn
from torch_nets import NETS, SIZES

LAYOUTS = {"channels_last": torch.channels_last, "contiguous": torch.contiguous_format}


class Training:
    """One net in one memory layout, with a batch that stays the same."""

    def __init__(self, options, layout):
        self.bf16, self.trains = options.precision == "bf16", options.phase == "TRAIN"
        size = SIZES.get(options.net, 224)
        net = NETS[options.net]().to(memory_format=LAYOUTS[layout])
        self.images = torch.randn(options.batch_size, 3, size, size).to(memory_format=LAYOUTS[layout])
        self.labels = torch.randint(0, 1000, (options.batch_size,))
        ranks = int(os.environ.get("WORLD_SIZE", 1))
        net.train(self.trains)
        self.net = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True) if ranks > 1 else net
        self.update = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9, weight_decay=1e-4, foreach=True)

    def step(self) -> float:
        """Its seconds."""
        begin = time.perf_counter()
        if self.trains:
            self.update.zero_grad(set_to_none=True)
            self.loss().backward()
            self.update.step()
        else:
            with torch.inference_mode():
                self.loss()
        return time.perf_counter() - begin

    def loss(self):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            scores = self.net(self.images)
            first, *rest = (weight * nn.functional.cross_entropy(values, self.labels) for values, weight in scores)
            return sum(rest, first)


def chosen_layout(options) -> str:
    """One step in each layout that does not count, then one that does."""
    seconds = {}
    for layout in LAYOUTS:
        training = Training(options, layout)
        seconds[layout] = [training.step() for _ in range(2)][-1]
    return min(seconds, key=seconds.__getitem__)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", choices=NETS, default="resnet50")
    parser.add_argument("--batch_size", type=int, default=32)
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
            "images_per_second": ranks * options.batch_size / statistics.median(steps),
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
