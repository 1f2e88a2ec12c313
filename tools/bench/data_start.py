#!/usr/bin/env python3
"""Measures how long a data layer of many items takes until its first batch, and how much memory it holds, epoch by
epoch.

    python tools/bench/data_start.py --ranks 4
    python tools/bench/data_start.py --ranks 16 --items 1281167 --json start.json

An LMDB of so many items of one pixel is written, with keys as convert_imageset writes them. A shuffled Data layer opens
it on each of the ranks, twice: the first time builds the index of the keys, the second maps it. For each rank it counts
the seconds from opening the source to the first batch, and by how much memory has grown by then and by the first batch
of each of three more epochs: its own memory, and all that is resident, which includes mapped files, the system's cache.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
EPOCHS = 4


def memory() -> tuple[int, int]:
    """Returns bytes of this process: its own, and all that are resident, pages of mapped files included."""
    fields = {}
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]:
        name, value, _ = line.split()
        fields[name.rstrip(":")] = 1024 * int(value)
    return fields["Anonymous"], fields["Rss"]


def write(path: Path, items: int) -> None:
    import lmdb

    from engine import proto

    with lmdb.open(str(path), map_size=1 << 40) as db, db.begin(write=True) as out:
        for n in range(items):
            value = proto.Datum(channels=1, height=1, width=1, data=bytes([n % 256]), label=n % 1000)
            key = f"{n:08d}_n{n % 1000:08d}/n{n % 1000:08d}_{n}.JPEG"
            out.put(key.encode(), value.SerializeToString(), append=True)


def work(path: str, batch: int) -> None:
    """Runs as a rank. Rank 0 prints a line of JSON: for each rank its seconds and its memory by epoch."""
    from google.protobuf import text_format

    from engine import proto
    from engine.comm.world import world
    from engine.data import open_data

    ranks = world()
    layer = proto.LayerParameter(name="data", type="Data")
    text_format.Parse(f'data_param {{ source: "{path}" batch_size: {batch} shuffle: true }}', layer)
    with open_data(small(proto, path), proto.TRAIN).batches(1, threads=1) as batches:
        next(batches)  # all that reading data imports is in memory after it
    ranks.barrier()
    before, begin, found = memory(), time.perf_counter(), []
    source = open_data(layer, proto.TRAIN, rank=ranks.rank, ranks=ranks.size)
    seconds = 0.0
    for epoch in range(EPOCHS):
        with source.batches(batch, ranks.rank, ranks.size, epoch * source.size) as batches:
            next(batches)
            seconds = seconds or time.perf_counter() - begin
            found.append([after - earlier for after, earlier in zip(memory(), before, strict=True)])
    gathered = ranks.gather((seconds, found))
    if gathered:
        print(json.dumps(gathered), flush=True)
    ranks.close()


def small(proto, path: str):
    """Writes a database of one item beside the large one. Returns a layer that reads it."""
    import lmdb

    beside = f"{path}_{os.getpid()}"
    with lmdb.open(beside, map_size=1 << 20) as db, db.begin(write=True) as out:
        datum = proto.Datum(channels=1, height=1, width=1, data=b"x")
        out.put(b"0", datum.SerializeToString())
    layer = proto.LayerParameter(name="small", type="Data")
    layer.data_param.source, layer.data_param.batch_size = beside, 1
    return layer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4, help="(default: 4)")
    parser.add_argument("--items", type=int, default=1_281_167, help="(default: ImageNet's 1,281,167)")
    parser.add_argument("--batch", type=int, default=32, help="samples of a rank's batch (default: 32)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    parser.add_argument("--worker", metavar="PATH", help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if options.worker:
        work(options.worker, options.batch)
        return
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "lmdb", options.items)
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "ENGINE_CACHE": f"{folder}/cache", "ENGINE_DATA_THREADS": "1"}
        command = ["mpiexec", "-n", str(options.ranks), sys.executable, __file__, "--worker", f"{folder}/lmdb"]
        for run in ("without an index", "with it"):
            command_line = [*command, "--batch", str(options.batch)]
            done = subprocess.run(command_line, capture_output=True, text=True, env=environ)
            if done.returncode:
                raise SystemExit(done.stderr.strip().splitlines()[-1])
            results[run] = json.loads(done.stdout.splitlines()[-1])
    print(f"{date.today()}, {options.items} items, {options.ranks} ranks on {os.cpu_count()} cores\n")
    print("| run | slowest rank's first batch, s | own memory by epoch, MB: most of a rank | with mapped files, MB |")
    print("|---|---|---|---|")
    for run, ranks in results.items():
        most = [[max(found[epoch][kind] for _, found in ranks) / 1e6 for epoch in range(EPOCHS)] for kind in (0, 1)]
        cells = [", ".join(f"{value:.1f}" for value in each) for each in most]
        print(f"| {run} | {max(seconds for seconds, _ in ranks):.2f} | {cells[0]} | {cells[1]} |")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
