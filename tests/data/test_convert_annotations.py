"""convert_annotations: turns annotations of VOC and COCO into boxes and masks that data layers read, and names what is
wrong with them."""

import json
import os
import subprocess
import sys
import zipfile

import lmdb
import numpy as np
import pytest
from google.protobuf import text_format
from PIL import Image

from engine import proto
from engine.cli import main
from engine.data import open_data
from engine.data.annotations import VOC_CLASSES, Thing
from engine.data.coco_masks import draw_mask
from engine.data.convert_annotations import convert_annotations
from engine.data.convert_imageset import Output
from engine.data.decode import decode_mask
from engine.errors import DataError, EngineError
from tests.data.pictures import image_bytes, random_pixels
from tests.mpi import REPO

WIDTH, HEIGHT = 16, 12
OBJECT = (
    "<object><name>{name}</name><difficult>{difficult}</difficult>"
    "<bndbox><xmin>{x1}</xmin><ymin>{y1}</ymin><xmax>{x2}</xmax><ymax>{y2}</ymax></bndbox></object>"
)


def voc_object(name, x1, y1, x2, y2, difficult=0):
    return OBJECT.format(name=name, x1=x1, y1=y1, x2=x2, y2=y2, difficult=difficult)


def xml(*objects, size=f"<size><width>{WIDTH}</width><height>{HEIGHT}</height></size>"):
    return f"<annotation>{size}{''.join(objects)}</annotation>"


@pytest.fixture
def voc(tmp_path):
    """Makes a VOC folder of the pictures b (a cat and two dogs, one of them difficult), a (no object) and c (a cat), in
    this order."""
    root = tmp_path / "VOC"
    for folder in ("JPEGImages", "Annotations", "SegmentationClass", "ImageSets/Main"):
        (root / folder).mkdir(parents=True)
    for number, name in enumerate("bac"):
        (root / f"JPEGImages/{name}.png").write_bytes(image_bytes(random_pixels(number)))
        mask = Image.fromarray(np.full((HEIGHT, WIDTH), number, np.uint8))
        mask.paste(255, (0, 0, 4, 2))
        mask.putpalette(list(range(256)) * 3)
        mask.save(root / f"SegmentationClass/{name}.png")
    objects = [voc_object("dog", 1, 1, 8, 6), voc_object("cat", 4, 3, 8, 12), voc_object("dog", 8, 1, 16, 12, 1)]
    (root / "Annotations/b.xml").write_text(xml(*objects))
    (root / "Annotations/a.xml").write_text(xml())
    (root / "Annotations/c.xml").write_text(xml(voc_object("cat", 2, 2, 3.5, 4)))
    (root / "ImageSets/Main/train.txt").write_text("b\na\n\nc\n")
    return root


def coco_content():
    """Returns COCO's annotations of the same pictures, numbered 7, 3 and 20: two boxes and a crowd, none, one box. The
    categories are 18 and 90."""
    boxes = [
        (7, 90, [0.5, 1, 8, 5.25], 0),
        (20, 18, [2, 2, 3, 4], 0),
        (7, 18, [0, 0, 16, 12], 1),
        (7, 18, [3, 3, 4, 8], 0),
    ]
    whole = {"size": [HEIGHT, WIDTH], "counts": [0, HEIGHT * WIDTH]}
    return {
        "images": [
            {"id": number, "file_name": f"{name}.png", "width": WIDTH, "height": HEIGHT}
            for number, name in ((7, "b"), (3, "a"), (20, "c"))
        ],
        "categories": [{"id": 90, "name": "tooth brush"}, {"id": 18, "name": "dog"}],
        "annotations": [
            {"id": n, "image_id": image, "category_id": category, "bbox": box, "iscrowd": crowd, "segmentation": whole}
            for n, (image, category, box, crowd) in enumerate(boxes)
        ],
    }


@pytest.fixture
def coco(voc, tmp_path):
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(coco_content()))
    return str(voc / "JPEGImages"), str(path)


def items(db, message=proto.AnnotatedDatum):
    with lmdb.open(str(db), readonly=True, lock=False) as environment, environment.begin() as transaction:
        return {key.decode(): message.FromString(value) for key, value in transaction.cursor()}


def boxes(datum):
    """Returns (label, instance, corners, difficult) of each box, in the order of the message."""
    return [
        (
            group.group_label,
            each.instance_id,
            *np.round([each.bbox.xmin, each.bbox.ymin, each.bbox.xmax, each.bbox.ymax], 5).tolist(),
            each.bbox.difficult,
        )
        for group in datum.annotation_group
        for each in group.annotation
    ]


def test_boxes_of_voc(voc, tmp_path, capfd):
    db = tmp_path / "db"
    assert main(["convert_annotations", str(voc), f"{voc}/ImageSets/Main/train.txt", str(db)]) == 0
    found = items(db)
    assert list(found) == ["00000000_b", "00000001_a", "00000002_c"]  # the order of the list
    cat, dog = VOC_CLASSES.index("cat") + 1, VOC_CLASSES.index("dog") + 1
    assert boxes(found["00000000_b"]) == [
        (dog, 0, 1 / 16, round(1 / 12, 5), 0.5, 0.5, False),
        (dog, 1, 0.5, round(1 / 12, 5), 1.0, 1.0, True),
        (cat, 0, 0.25, 0.25, 0.5, 1.0, False),
    ]
    assert boxes(found["00000001_a"]) == [] and len(boxes(found["00000002_c"])) == 1
    first = found["00000000_b"]
    assert first.type == proto.AnnotatedDatum.BBOX and first.datum.label == -1
    assert (first.datum.channels, first.datum.height, first.datum.width) == (3, HEIGHT, WIDTH)
    labels = text_format.Parse((db / "labelmap.prototxt").read_text(), proto.LabelMap())
    assert [item.name for item in labels.item] == ["none_of_the_above", *VOC_CLASSES]
    assert [item.label for item in labels.item] == list(range(21))
    assert (db / "name_size.txt").read_text() == "b 12 16\na 12 16\nc 12 16\n"
    said = capfd.readouterr().err
    assert f"class {cat} cat: 2 boxes in 2 images\n" in said
    assert f"class {dog} dog: 2 boxes in 1 images, 1 of them difficult\n" in said and "Wrote 3 images" in said


def test_boxes_of_coco(coco, tmp_path):
    db = tmp_path / "db"
    done = convert_annotations(*coco, str(db))
    found = items(db)
    assert list(found) == ["00000000_3", "00000001_7", "00000002_20"]  # in the order of the pictures' numbers
    assert boxes(found["00000001_7"]) == [
        (2, 0, 0.5 / 16, round(1 / 12, 5), 8.5 / 16, round(6.25 / 12, 5), False),
        (1, 0, 0.0, 0.0, 1.0, 1.0, True),  # the crowd
        (1, 1, 3 / 16, 0.25, 7 / 16, round(11 / 12, 5), False),
    ]
    labels = text_format.Parse((db / "labelmap.prototxt").read_text(), proto.LabelMap())
    assert [(item.name, item.label, item.display_name) for item in labels.item][1:] == [
        ("18", 1, "dog"),
        ("90", 2, "tooth brush"),
    ]
    assert (done.things, done.images, done.difficult) == ({1: 3, 2: 1}, {1: 2, 2: 1}, {1: 1})
    assert (db / "name_size.txt").read_text() == "3 12 16\n7 12 16\n20 12 16\n"


def test_a_net_reads_what_was_written(coco, tmp_path):
    convert_annotations(*coco, str(tmp_path / "boxes"))
    convert_annotations(*coco, str(tmp_path / "masks"), masks=True)
    layer = proto.LayerParameter(name="data", type="AnnotatedData", top=["data", "label"])
    text_format.Parse(f'data_param {{ source: "{tmp_path}/boxes" batch_size: 3 }}', layer)
    with open_data(layer, proto.TEST).batches(3) as batches:
        label = batches.next().arrays["data"][1]
    assert label[0, 0, :5, 0].tolist() == [1, 1, 1, 2, -1] and label[0, 0, 1, 7] == 1
    layer.type = "Data"
    layer.data_param.source = f"{tmp_path}/masks"
    with open_data(layer, proto.TEST).batches(3) as batches:
        data, label = batches.next().arrays["data"]
    assert data.shape == (3, 3, HEIGHT, WIDTH) and label.shape == (3, 1, HEIGHT, WIDTH)


def test_another_parts_label_map(coco, voc, tmp_path):
    (tmp_path / "map.prototxt").write_text(
        'item { name: "90" label: 5 } item { name: "18" label: 1 display_name: "x" }'
    )
    done = convert_annotations(*coco, str(tmp_path / "db"), label_map=str(tmp_path / "map.prototxt"))
    assert done.things == {1: 3, 5: 1} and done.names == {1: "x", 5: "90"}
    (tmp_path / "map.prototxt").write_text('item { name: "cat" label: 1 } item { name: "doc" label: 2 }')
    with pytest.raises(DataError, match=r"b\.xml: object 1: 'dog' is no class of .*map\.prototxt; did you mean 'doc'"):
        convert_annotations(
            str(voc), f"{voc}/ImageSets/Main/train.txt", f"{tmp_path}/x", label_map=f"{tmp_path}/map.prototxt"
        )


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "expected a label map"),
        ("net: 1", "expected a label map"),
        ('item { name: "cat" }', "expected items with a name and a label of 0 to 65535"),
        (
            'item { name: "cat" label: -1 }',
            'expected items with a name and a label of 0 to 65535, got \'name: "cat" label',
        ),
        ('item { name: "cat" label: 2147483647 }', "expected items with a name and a label of 0 to 65535"),
        ('item { name: "cat" label: 1 } item { name: "dog" label: 1 }', "each name and label once, got 1 twice"),
        ('item { name: "cat" label: 1 } item { name: "cat" label: 2 }', "each name and label once, got 'cat' twice"),
        ('item { name: "cat" label: x }', "map.prototxt:1:20"),
    ],
)
def test_label_maps_that_are_none(voc, tmp_path, text, said):
    (tmp_path / "map.prototxt").write_text(text)
    with pytest.raises(EngineError, match=said):
        convert_annotations(
            str(voc), f"{voc}/ImageSets/Main/train.txt", f"{tmp_path}/x", label_map=f"{tmp_path}/map.prototxt"
        )


def test_other_names_than_voc_s_are_numbered_by_the_alphabet(voc, tmp_path):
    (voc / "Annotations/a.xml").write_text(xml(voc_object("ant", 1, 1, 5, 5), size=""))
    done = convert_annotations(str(voc), f"{voc}/ImageSets/Main/train.txt", f"{tmp_path}/db")
    assert done.names == {0: "background", 1: "ant", 2: "cat", 3: "dog"}


def test_pictures_in_another_size_and_order(voc, tmp_path):
    plain, other = tmp_path / "plain", tmp_path / "other"
    lists = f"{voc}/ImageSets/Main/train.txt"
    convert_annotations(str(voc), lists, str(plain))
    convert_annotations(str(voc), lists, str(other), Output(height=6, width=8, encoded=True), shuffle=True, seed=3)
    found = {key[9:]: value for key, value in items(other).items()}
    assert list(found) != ["b", "a", "c"] and found["b"].datum.encoded
    assert all(boxes(value) == boxes(found[key[9:]]) for key, value in items(plain).items())
    assert sorted((other / "name_size.txt").read_text().split("\n")[:3]) == ["a 12 16", "b 12 16", "c 12 16"]
    again = tmp_path / "again"
    convert_annotations(str(voc), lists, str(again), Output(height=6, width=8, encoded=True), shuffle=True, seed=3)
    assert (again / "data.mdb").read_bytes() == (other / "data.mdb").read_bytes()


def test_a_kind_of_files_asks_for_files(voc, tmp_path):
    output = Output(encode_type="png")
    convert_annotations(str(voc), f"{voc}/ImageSets/Main/train.txt", f"{tmp_path}/db", output)
    found = items(tmp_path / "db").values()
    assert all(value.datum.encoded and value.datum.data.startswith(b"\x89PNG") for value in found)


def test_archives(voc, tmp_path):
    with zipfile.ZipFile(tmp_path / "VOC.zip", "w") as archive:
        for path in voc.rglob("*.*"):
            archive.write(path, path.relative_to(tmp_path))
    convert_annotations(f"{voc}", f"{voc}/ImageSets/Main/train.txt", f"{tmp_path}/plain")
    zipped = f"{tmp_path}/VOC.zip"
    convert_annotations(zipped, f"{zipped}/VOC/ImageSets/Main/train.txt", f"{tmp_path}/zipped")
    assert (tmp_path / "plain/data.mdb").read_bytes() == (tmp_path / "zipped/data.mdb").read_bytes()


def test_boxes_that_are_cut_or_left_out(voc, tmp_path, capfd):
    objects = [voc_object("cat", -3, 1, 20, 6), voc_object("dog", 3, 3, 3, 9), voc_object("dog", 1, 1, 16, 12)]
    (voc / "Annotations/b.xml").write_text(xml(*objects))
    db = tmp_path / "db"
    assert main(["convert_annotations", str(voc), f"{voc}/ImageSets/Main/train.txt", str(db)]) == 0
    assert [box[2:6] for box in boxes(items(db)["00000000_b"])] == [
        (0.0, round(1 / 12, 5), 1.0, 0.5),
        (1 / 16, round(1 / 12, 5), 1.0, 1.0),
    ]
    said = capfd.readouterr().err
    assert f"1 boxes have no area and are left out, the first at {voc}/Annotations/b.xml: object 2" in said
    assert "1 boxes reach out of their pictures" in said


def test_masks_of_voc(voc, tmp_path, capfd):
    db = tmp_path / "db"
    lists = f"{voc}/ImageSets/Main/train.txt"
    assert main(["convert_annotations", str(voc), lists, str(db), "--masks"]) == 0
    masks = [np.asarray(decode_mask(datum.mask)) for datum in items(db, proto.Datum).values()]
    assert [np.unique(mask).tolist() for mask in masks] == [[0, 255], [1, 255], [2, 255]]
    said = capfd.readouterr().err
    assert "class 1: 184 pixels in 1 images" in said and "class 255 not counted: 24 pixels in 3 images" in said
    (tmp_path / "map.prototxt").write_text('item { name: "cat" label: 1 }')
    with pytest.raises(DataError, match=r"c\.png has pixels of class 2, which .*map\.prototxt has not"):
        convert_annotations(str(voc), lists, f"{tmp_path}/x", masks=True, label_map=f"{tmp_path}/map.prototxt")
    with open(tmp_path / "map.prototxt", "a") as file:
        file.write(' item { name: "dog" label: 2 }')
    convert_annotations(str(voc), lists, f"{tmp_path}/named", masks=True, label_map=f"{tmp_path}/map.prototxt")
    assert (tmp_path / "named/labels.txt").read_text() == "background\ncat\ndog\n"


# Masks of COCO


def thing(segmentation, crowd=False):
    return Thing("1", (0, 0, 1, 1), crowd, "x.json: annotations[0]", segmentation)


def test_smaller_objects_lie_in_front_and_crowds_do_not_count():
    height, width = 4, 6
    rows = {"size": [height, width], "counts": [0, 8, 16]}  # fills the first two columns
    large = {"size": [height, width], "counts": [0, 16, 8]}
    crowd = {"size": [height, width], "counts": [12, 12]}
    for order in ([(1, thing(rows)), (2, thing(large))], [(2, thing(large)), (1, thing(rows))]):
        mask = draw_mask([*order, (3, thing(crowd, crowd=True))], height, width)
        assert mask[0].tolist() == [1, 1, 2, 2, 255, 255] and (mask == mask[0]).all()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # pycocotools' own, about NumPy 2
def test_runs_and_polygons_are_those_of_pycocotools():
    tools = pytest.importorskip("pycocotools.mask", reason="pycocotools is not installed")
    draw = np.random.default_rng(1)
    height, width = 37, 53
    for share in (0, 0.03, 0.5, 0.97, 1):
        truth = np.asfortranarray(draw.random((height, width)) < share).astype(np.uint8)
        packed = tools.encode(truth)["counts"].decode()
        mask = draw_mask([(1, thing({"size": [height, width], "counts": packed}))], height, width)
        assert np.array_equal(mask, truth)
    for _ in range(20):
        polygons = [draw.uniform(0, [width, height], (n, 2)).ravel().tolist() for n in (3, 7)]
        theirs = tools.decode(tools.merge(tools.frPyObjects(polygons, height, width)))
        assert np.array_equal(draw_mask([(1, thing(polygons))], height, width), theirs)
    assert not draw_mask([(1, thing([[1, 1, 9, 9]]))], height, width).any()  # a polygon of two points
    far = draw_mask([(1, thing([[-1e9, 0, 1e9, 0, 1e9, 1e9, -1e9, 1e9]]))], height, width)
    assert far.mean() > 0.95  # drawn at once, and in little memory


def test_masks_that_would_take_too_long():
    """A polygon of 50 KB would take 52 GB. The time of many polygons grows with the square of their number."""
    pytest.importorskip("pycocotools.mask", reason="pycocotools is not installed")
    zigzag = [value for row in range(20_000) for value in (65_500 * (row % 2), row / 20)]
    with pytest.raises(
        DataError, match=r"annotations\[0\]\.segmentation: the polygons of the picture are 13\d+ pixels long"
    ):
        draw_mask([(1, thing([zigzag]))], 1000, 65_500)
    short = [value for row in range(100) for value in (65_500 * (row % 2), row)]
    with pytest.raises(DataError, match=r"are 13\d+ pixels long up to here, more than 8388608"):
        draw_mask([(1, thing([short]))] * 2, 1000, 65_500)
    many = [[x, y, x + 1, y, x + 1, y + 1, x, y + 1] for x in range(0, 400, 2) for y in range(0, 400, 2)]
    assert draw_mask([(1, thing(many))], 400, 400).sum() == len(many)
    with pytest.raises(DataError, match=r"has 2000 objects in 8192 x 8192 pixels; at most 1024 are drawn"):
        draw_mask([(1, thing([]))] * 2000, 8192, 8192)


def test_polygons_without_pycocotools(monkeypatch):
    monkeypatch.setitem(sys.modules, "pycocotools", None)
    with pytest.raises(EngineError, match=r"need pycocotools, .*: pip install 'prototxt-engine\[coco\]'"):
        draw_mask([(1, thing([[0, 0, 5, 0, 5, 5]]))], 9, 9)


@pytest.mark.parametrize(
    "segmentation, said",
    [
        (None, "expected polygons, or runs {counts, size}, got None"),
        ("x", "expected polygons, or runs"),
        ([["a"] * 6], r"segmentation\[0\]: expected x, y, x, y, ... as numbers"),
        ([[1, 2, 3, 4, 5]], r"segmentation\[0\]: expected x, y"),
        ([[1e308] * 6], r"segmentation\[0\]: expected x, y"),
        ([5], r"segmentation\[0\]: expected x, y"),
        ({"counts": [12]}, r"size: expected the picture's, \[3, 4\], got None"),
        ({"size": [4, 3], "counts": [12]}, r"size: expected the picture's, \[3, 4\], got \[4, 3\]"),
        ({"size": [3, 4]}, "counts: expected a text, or lengths of runs, got None"),
        ({"size": [3, 4], "counts": [-1, 13]}, "counts: expected a text, or lengths of runs"),
        ({"size": [3, 4], "counts": [1.5, 10.5]}, "counts: expected a text, or lengths of runs"),
        ({"size": [3, 4], "counts": [5, 6]}, r"expected runs of 12 pixels in all \(3 x 4\), got 11"),
        ({"size": [3, 4], "counts": [12, 12]}, "expected runs of 12 pixels in all .* got 24"),
        ({"size": [3, 4], "counts": "5"}, "got 5"),
        ({"size": [3, 4], "counts": "\x7f~"}, "is no compressed mask"),
        ({"size": [3, 4], "counts": "o" * 99}, "is no compressed mask"),
        ({"size": [3, 4], "counts": "o"}, "ends within a number"),
    ],
)
def test_masks_that_cannot_be(segmentation, said):
    with pytest.raises(DataError, match=rf"x\.json: annotations\[0\].*{said}"):
        draw_mask([(1, thing(segmentation))], 3, 4)


def test_a_label_that_no_mask_holds():
    with pytest.raises(DataError, match="a mask holds labels 1 to 254, got 255 of class 1"):
        draw_mask([(255, thing([]))], 3, 4)


# Wrong files

DOCTYPE = '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><annotation>&b;</annotation>'


@pytest.mark.parametrize(
    "file, text, said",
    [
        ("ImageSets/Main/train.txt", "", "train.txt: it names no pictures"),
        ("ImageSets/Main/train.txt", "b\nb\n", "train.txt:2: b is there twice, first in line 1"),
        ("ImageSets/Main/train.txt", "b -1\n", "train.txt:1: expected the name of a picture, .* got 'b -1'"),
        ("ImageSets/Main/train.txt", "d\n", r"train.txt:1: Annotations/d\.xml is not there"),
        ("ImageSets/Main/train.txt", "../../secret\n", "train.txt:1: '../../secret' leads out of the folder"),
        ("Annotations/b.xml", "", r"Annotations/b\.xml: it is no XML"),
        ("Annotations/b.xml", "<annotation>", r"Annotations/b\.xml: it is no XML"),
        ("Annotations/b.xml", "<html/>", r"Annotations/b\.xml: expected <annotation> as its root, got <'html'>"),
        ("Annotations/b.xml", DOCTYPE, r"Annotations/b\.xml: it declares a document type"),
        ("Annotations/b.xml", b"\xff\xfe<\0a\0", r"Annotations/b\.xml: cannot be read: byte 0 is not UTF-8"),
        (
            "Annotations/b.xml",
            xml(size="<size><width>16</width></size>"),
            "b.xml: size: height: expected a number, got none",
        ),
        (
            "Annotations/b.xml",
            xml(size="<size><width>5</width><height>9</height></size>"),
            "of 5 x 9 pixels .* has 16 x 12",
        ),
        ("Annotations/b.xml", xml("<object><name>a</name></object>"), "object 1: expected a <bndbox>, got none"),
        ("Annotations/b.xml", xml(voc_object("", 1, 1, 2, 2)), "object 1: expected a <name>, got none"),
        ("Annotations/b.xml", xml(voc_object("a", "", 1, 2, 2)), "object 1: bndbox: xmin: expected a number, got none"),
        ("Annotations/b.xml", xml(voc_object("a", "x", 1, 2, 2)), "bndbox: xmin: expected a number, got 'x'"),
        ("Annotations/b.xml", xml(voc_object("a", "nan", 1, 2, 2)), "bndbox: xmin: expected a number, got 'nan'"),
        ("Annotations/b.xml", xml(voc_object("a", 1, 1, "inf", 2)), "bndbox: xmax: expected a number, got 'inf'"),
        (
            "Annotations/b.xml",
            xml(voc_object("a", 5, 1, 2, 2)),
            "object 1: expected a box whose first corner .* 5 1 2 2",
        ),
        ("Annotations/b.xml", xml(voc_object("a", 17, 1, 20, 2)), "object 1: expected a box in the picture, 16 x 12"),
        ("Annotations/b.xml", xml(voc_object("a", 1, 1, 2, 2, "maybe")), "difficult: expected 0 or 1, got 'maybe'"),
        ("Annotations/b.xml", xml(*[voc_object("a", 1, 1, 2, 2)] * 2049), "b.png has 2049 boxes, at most 2048"),
        ("JPEGImages/c.png", b"no picture", r"JPEGImages/c\.png: cannot decode 10 bytes as an image"),
    ],
)
def test_voc_that_is_wrong(voc, tmp_path, file, text, said):
    (voc / file).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=said):
        convert_annotations(str(voc), f"{voc}/ImageSets/Main/train.txt", f"{tmp_path}/db")
    assert sorted(os.listdir(tmp_path)) == ["VOC"]


def test_masks_of_voc_that_are_wrong(voc, tmp_path):
    lists = f"{voc}/ImageSets/Main/train.txt"
    Image.new("L", (3, 3)).save(voc / "SegmentationClass/c.png")
    with pytest.raises(DataError, match=r"c\.png: expected a mask of 12 x 16 .* got 3 x 3"):
        convert_annotations(str(voc), lists, f"{tmp_path}/db", masks=True)
    Image.new("RGB", (WIDTH, HEIGHT)).save(voc / "SegmentationClass/c.png")
    with pytest.raises(DataError, match="expected a mask of one channel or with a palette, got mode RGB"):
        convert_annotations(str(voc), lists, f"{tmp_path}/db", masks=True)
    done = convert_annotations(str(voc), lists, f"{tmp_path}/db", masks=True, skip_bad_images=True)
    assert done.written == 2 and list(done.skipped) == ["JPEGImages/c.png"]
    (voc / "SegmentationClass/b.png").unlink()
    with pytest.raises(DataError, match=r"train.txt:1: SegmentationClass/b\.png is not there; is this an image set"):
        convert_annotations(str(voc), lists, f"{tmp_path}/x", masks=True)


def changed(key, value):
    """Returns the content with another value at a key such as images.0.id, or without the key if the value is None."""
    content = coco_content()
    *path, last = [int(word) if word.isdigit() else word for word in key.split(".")]
    at = content
    for word in path:
        at = at[word]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return json.dumps(content)


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "it is no JSON"),
        ("[" * 100_000, "it is no JSON"),
        ('{"images": [NaN]}', "it is no JSON: NaN is no number"),
        ("[]", "categories: expected a list"),
        (changed("images", None), "images: expected a list"),
        (changed("images", []), "images: expected pictures, got an empty list"),
        (changed("categories", None), "categories: expected a list"),
        (changed("annotations", {}), "annotations: expected a list"),
        (changed("annotations.1", 7), r"annotations\[1\]: expected an object, got 7"),
        (changed("categories.0.id", "90"), r"categories\[0\]\.id: expected a whole number of 0 or more, got '90'"),
        (changed("categories.0.id", 18), r"categories\[1\]\.id: 18 is there twice"),
        (changed("categories.0.name", None), r"categories\[0\]\.name: expected a name, got none"),
        (changed("categories.0.name", "\ud800"), r"categories\[0\]\.name: expected a name, got '\\ud800'"),
        (
            changed("images.0.file_name", "\ud800"),
            r"images\[0\]\.file_name: expected the name of a file, got '\\ud800'",
        ),
        (changed("images.1.id", 7), r"images\[1\]\.id: 7 is there twice"),
        (changed("images.1.id", -1), r"images\[1\]\.id: expected a whole number of 0 or more, got -1"),
        (changed("images.1.id", True), r"images\[1\]\.id: expected a whole number of 0 or more, got True"),
        (changed("images.0.width", 0), r"images\[0\]\.width: expected a whole number of 1 or more, got 0"),
        (changed("images.0.width", 99), r"images\[0\]\.file_name: expected b\.png of 99 x 12 pixels .* has 16 x 12"),
        (changed("images.0.file_name", ""), r"images\[0\]\.file_name: expected the name of a file, got ''"),
        (changed("images.0.file_name", "x.png"), r"images\[0\]\.file_name: x\.png is not in"),
        (changed("images.0.file_name", "../../x.png"), r"images\[0\]\.file_name: '../../x\.png' leads out of"),
        (changed("images.0.file_name", "/etc/passwd"), r"images\[0\]\.file_name: '/etc/passwd' leads out of"),
        (changed("annotations.0.image_id", 8), r"annotations\[0\]\.image_id: no image has the id 8"),
        (changed("annotations.0.category_id", 1), r"annotations\[0\]\.category_id: no category has the id 1"),
        (changed("annotations.0.iscrowd", 2), r"annotations\[0\]\.iscrowd: expected 0 or 1, got 2"),
        (changed("annotations.0.bbox", None), r"annotations\[0\]\.bbox: expected x, y, width and height"),
        (changed("annotations.0.bbox", [1, 2, 3]), r"annotations\[0\]\.bbox: expected x, y, width and height"),
        (changed("annotations.0.bbox", [1, 2, 3, "4"]), r"annotations\[0\]\.bbox: expected x, y, width and height"),
        (changed("annotations.0.bbox", [1, 2, 3, 10**400]), r"annotations\[0\]\.bbox: expected x, y"),
        (changed("annotations.0.bbox", [1, 2, -3, 4]), r"annotations\[0\]: expected a box whose first corner"),
        (changed("annotations.0.bbox", [16, 2, 3, 4]), r"annotations\[0\]: expected a box in the picture, 16 x 12"),
    ],
)
def test_coco_that_is_wrong(coco, tmp_path, text, said):
    root, path = coco
    with open(path, "w") as file:
        file.write(text)
    with pytest.raises(DataError, match=f"instances.json: .*{said}"):
        convert_annotations(root, path, f"{tmp_path}/db")
    assert sorted(os.listdir(tmp_path)) == ["VOC", "instances.json"]


def test_what_else_cannot_be(coco, voc, tmp_path):
    (tmp_path / "db").mkdir()
    with pytest.raises(DataError, match="db exists already"):
        convert_annotations(*coco, f"{tmp_path}/db")
    with pytest.raises(DataError, match="no such folder, zip or tar file"):
        convert_annotations(f"{tmp_path}/none", coco[1], f"{tmp_path}/x")
    with pytest.raises(DataError, match=r"none\.json: cannot be read"):
        convert_annotations(coco[0], f"{tmp_path}/none.json", f"{tmp_path}/x")
    for name in "abc":
        (voc / f"JPEGImages/{name}.png").write_bytes(b"")
    with pytest.raises(DataError, match="none of its 3 pictures can be decoded"):
        convert_annotations(*coco, f"{tmp_path}/x", skip_bad_images=True)
    assert not (tmp_path / "x").exists()


def test_an_entity_reads_no_other_file(voc, tmp_path):
    (tmp_path / "secret").write_text("dog")
    text = f'<!DOCTYPE x [<!ENTITY a SYSTEM "file://{tmp_path}/secret">]>' + xml(voc_object("&a;", 1, 1, 4, 4))
    (voc / "Annotations/b.xml").write_text(text)
    with pytest.raises(DataError, match="expected plain elements: take <!DOCTYPE"):
        convert_annotations(str(voc), f"{voc}/ImageSets/Main/train.txt", f"{tmp_path}/db")


def test_voc_and_coco_say_the_same_of_the_shapes(tmp_path):
    """Both say the same of examples/shapes, except that VOC numbers pixels from 1 and draws borders around its
    masks."""
    shapes = tmp_path / "shapes"
    script = [sys.executable, REPO / "examples/shapes/make_shapes.py", shapes, "--train", "9", "--test", "1"]
    subprocess.run(script, check=True)
    lists, map_file = f"{shapes}/ImageSets/Main/train.txt", f"{shapes}/labelmap.prototxt"
    found = {}
    for masks in (False, True):
        convert_annotations(str(shapes), lists, f"{tmp_path}/voc{masks}", masks=masks, label_map=map_file)
        convert_annotations(
            f"{shapes}/JPEGImages", f"{shapes}/instances_train.json", f"{tmp_path}/coco{masks}", masks=masks
        )
        kind = proto.Datum if masks else proto.AnnotatedDatum
        for of in ("voc", "coco"):
            found[of, masks] = list(items(tmp_path / f"{of}{masks}", kind).values())
    for voc_s, coco_s in zip(found["voc", False], found["coco", False], strict=True):
        assert voc_s.datum == coco_s.datum and len(boxes(voc_s)) == len(boxes(coco_s)) > 0
        offset = np.array([0, 0, 1 / 64, 1 / 64, 0, 0, 0])
        np.testing.assert_allclose(boxes(voc_s) - offset, np.array(boxes(coco_s), float), atol=2e-5)
    for voc_s, coco_s in zip(found["voc", True], found["coco", True], strict=True):
        borders, whole = (np.asarray(decode_mask(each.mask)) for each in (voc_s, coco_s))
        assert np.array_equal(whole[borders != 255], borders[borders != 255]) and (whole[borders == 255] > 0).all()
        assert 0 < (borders == 255).mean() < 0.1
