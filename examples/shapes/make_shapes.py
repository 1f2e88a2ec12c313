"""Makes annotated pictures: discs, squares and triangles, pasted onto noise.

    python examples/shapes/make_shapes.py shapes

writes the folder shapes in the form of Pascal VOC (JPEGImages, Annotations, SegmentationClass with borders of 255,
ImageSets), and labelmap.prototxt. instances_train.json and instances_test.json describe the same pictures in the form
of COCO, with masks as runs.
"""

import argparse
import json
import sys
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np
from PIL import Image

SIDE = 64
CLASSES = {"disc": 1, "square": 2, "triangle": 3}
COCO_IDS = {"disc": 1, "square": 4, "triangle": 9}  # with gaps, as COCO's have them
IGNORED = 255
PALETTE = [0, 0, 0, 220, 60, 60, 60, 180, 75, 60, 100, 230]  # colours of a mask's values 0 to 3; below, that of 255
PALETTE += [0] * (3 * IGNORED - len(PALETTE)) + [224, 224, 192]


def shape(name, size, x, y):
    """Returns (SIDE, SIDE), whether each pixel belongs to a shape. The shape fills the square of this size whose upper
    left corner is x, y."""
    down, right = np.mgrid[:SIDE, :SIDE]
    right, down = (right - x + 0.5) / size, (down - y + 0.5) / size
    inside = (right > 0) & (right < 1) & (down > 0) & (down < 1)
    if name == "disc":
        inside &= (right - 0.5) ** 2 + (down - 0.5) ** 2 < 0.25
    elif name == "triangle":
        inside &= np.abs(right - 0.5) < down / 2
    return inside


def scene(draw):
    """Returns (picture, mask, objects). An object is (name, whether each pixel is the object's); none covers
    another."""
    ground = draw.uniform(60, 190, 3) + draw.normal(0, 25, (SIDE, SIDE, 3))
    objects, taken = [], np.zeros((SIDE, SIDE), bool)
    mask = np.zeros((SIDE, SIDE), np.uint8)
    for _ in range(draw.integers(1, 5)):
        name, size = draw.choice(list(CLASSES)), draw.integers(12, 29)
        x, y = draw.integers(0, SIDE - size + 1, 2)
        inside = shape(name, size, x, y)
        if (taken[y : y + size, x : x + size]).any():
            continue
        taken[y : y + size, x : x + size] = True
        ground[inside] = draw.uniform(0, 255, 3) + draw.normal(0, 15, (inside.sum(), 3))
        edge = inside & ~np.all([np.roll(inside, step, axis) for step in (-1, 1) for axis in (0, 1)], axis=0)
        mask[inside], mask[edge] = CLASSES[name], IGNORED
        objects.append((str(name), inside))
    return np.clip(ground, 0, 255).astype(np.uint8), mask, objects


def corners(inside):
    """Returns x1, y1, x2, y2 around an object; x2 and y2 are just outside."""
    rows, columns = np.flatnonzero(inside.any(1)), np.flatnonzero(inside.any(0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def runs(inside):
    """Returns COCO's runs: how many pixels do not belong to the object, how many do, and so on in turns, column by
    column."""
    pixels = inside.T.ravel()
    ends = np.flatnonzero(np.diff(pixels)) + 1
    lengths = np.diff([0, *ends, pixels.size]).tolist()
    return [0, *lengths] if pixels[0] else lengths


def voc(name, objects):
    """Returns the picture's XML. VOC counts pixels from 1, and xmax and ymax belong to the box."""
    lines = [f"<annotation><filename>{escape(name)}.png</filename>"]
    lines.append(f"<size><width>{SIDE}</width><height>{SIDE}</height><depth>3</depth></size>")
    for kind, inside in objects:
        x1, y1, x2, y2 = corners(inside)
        box = f"<xmin>{x1 + 1}</xmin><ymin>{y1 + 1}</ymin><xmax>{x2}</xmax><ymax>{y2}</ymax>"
        lines.append(f"<object><name>{kind}</name><difficult>0</difficult><bndbox>{box}</bndbox></object>")
    return "\n".join([*lines, "</annotation>", ""])


def write(folder, subset, count, draw):
    """Writes `count` pictures, with the annotations of both forms. subset: "train" or "test"."""
    names, images, annotations = [f"{subset}_{number:04d}" for number in range(count)], [], []
    for number, name in enumerate(names, 1):
        pixels, mask, objects = scene(draw)
        Image.fromarray(pixels).save(folder / f"JPEGImages/{name}.png")
        palette = Image.fromarray(mask).convert("P")
        palette.putpalette(PALETTE)
        palette.save(folder / f"SegmentationClass/{name}.png")
        (folder / f"Annotations/{name}.xml").write_text(voc(name, objects))
        images.append({"id": number, "file_name": f"{name}.png", "width": SIDE, "height": SIDE})
        for kind, inside in objects:
            x1, y1, x2, y2 = corners(inside)
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": COCO_IDS[kind],
                    "bbox": [x1, y1, x2 - x1, y2 - y1],
                    "area": int(inside.sum()),
                    "iscrowd": 0,
                    "segmentation": {"size": [SIDE, SIDE], "counts": runs(inside)},
                }
            )
    for kind in ("Main", "Segmentation"):
        (folder / f"ImageSets/{kind}/{subset}.txt").write_text("\n".join([*names, ""]))
    categories = [{"id": number, "name": name} for name, number in COCO_IDS.items()]
    content = {"images": images, "categories": categories, "annotations": annotations}
    (folder / f"instances_{subset}.json").write_text(json.dumps(content))
    print(f"{count} pictures with {len(annotations)} objects in {folder}: {subset}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to write")
    parser.add_argument("--train", type=int, default=1000, help="pictures to train with (default: 1000)")
    parser.add_argument("--test", type=int, default=200, help="pictures to test with (default: 200)")
    options = parser.parse_args()
    if options.train < 1 or options.test < 1:
        parser.error("--train and --test: expected numbers above 0")
    labels = {"background": 0, **CLASSES}
    items = [f'item {{ name: "{name}" label: {label} display_name: "{name}" }}\n' for name, label in labels.items()]
    draw = np.random.default_rng(1)
    try:
        for inner in ("JPEGImages", "Annotations", "SegmentationClass", "ImageSets/Main", "ImageSets/Segmentation"):
            (options.folder / inner).mkdir(parents=True, exist_ok=True)
        (options.folder / "labelmap.prototxt").write_text("".join(items))
        for subset, count in (("train", options.train), ("test", options.test)):
            write(options.folder, subset, count, draw)
    except OSError as error:
        sys.exit(f"{options.folder}: cannot be written: {error}")


if __name__ == "__main__":
    main()
