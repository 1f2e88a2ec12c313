"""Draws the shortest iteration of a timeline, for docs/: `python tools/timeline_picture.py ranks.json docs/x.svg`.

To look at a timeline, use ui.perfetto.dev.
"""

from __future__ import annotations

import argparse
import json

from matplotlib import pyplot as plt
from matplotlib.patches import Rectangle

COLOURS = {"fwd": "#4c72b0", "bwd": "#dd8452", "reduce": "#55a868", "update": "#c44e52", "wait": "#bbbbbb"}


def colour(name: str) -> str:
    return next((shade for word, shade in COLOURS.items() if word in name), "#8c8c8c")


def main() -> None:
    parser = argparse.ArgumentParser(description="Draws an iteration of a timeline.")
    parser.add_argument("timeline", help="what --timeline has written")
    parser.add_argument("picture", help=".svg or .png")
    parser.add_argument("--rank", type=int, default=0)
    options = parser.parse_args()
    with open(options.timeline) as file:
        events = [event for event in json.load(file)["traceEvents"] if event["pid"] == options.rank]
    rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    spans = [event for event in events if event["ph"] == "X"]
    whole = min((span for span in spans if span["cat"] == "iterations"), key=lambda span: span["dur"])
    begin, end = whole["ts"], whole["ts"] + whole["dur"]
    shown = [span for span in spans if begin <= span["ts"] < end and span["cat"] != "iterations"]
    order = sorted({span["tid"] for span in shown})
    _, axes = plt.subplots(figsize=(8, 0.8 + 0.4 * len(order)), layout="constrained")
    for span in shown:
        left, width = (span["ts"] - begin) / 1000, span["dur"] / 1000
        axes.barh(order.index(span["tid"]), width, left=left, color=colour(span["name"]), edgecolor="white", lw=0.3)
    axes.set_yticks(range(len(order)), [rows[tid] for tid in order])
    axes.invert_yaxis()
    axes.set_xlabel(f"milliseconds of {whole['name']} on rank {options.rank}")
    used = {word: shade for word, shade in COLOURS.items() if any(word in span["name"] for span in shown)}
    handles = [Rectangle((0, 0), 1, 1, color=shade) for shade in used.values()]
    axes.legend(handles, used, loc="upper center", bbox_to_anchor=(0.5, 1.25), ncols=len(used), frameon=False)
    plt.rcParams["svg.fonttype"] = "none"
    plt.savefig(options.picture)


if __name__ == "__main__":
    main()
