"""The targets: each format, nets, data layers, and a run that is resumed from a snapshot."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np

from engine import proto, weights
from engine.config import nets_of_solver, parse_net, parse_solver, read_net, read_solver
from engine.config.upgrade_files import upgrade_net_binary
from engine.data.annotations import read_annotations
from engine.data.chest_xray14 import read_entries
from engine.data.coco_masks import draw_mask
from engine.data.decode import COLOR, GRAY, AnyImage, ImageError, as_array, as_pillow, decode, open_image, parse_datum
from engine.data.image_tree import open_tree, read_list, read_text
from engine.data.keyed_random import KeyedRandom
from engine.data.mean import read_mean
from engine.data.registry import open_source
from engine.data.transform import Transformer
from engine.data.video_file import read_frames
from engine.errors import ConfigError, DataError
from engine.exchange.onnx_import import import_onnx
from engine.exchange.torch_file import read_state
from engine.graph.build import build
from engine.report.parse_log import write_csv
from engine.solver.schedules import LearningRate
from engine.solver.state import PlateauState
from engine.solver.validate import validate
from tests.fuzz import layers, resume, seeds
from tests.fuzz.mutate import mutate_text
from tests.fuzz.target import TARGETS, Run, of_file, read_data, target

__all__ = ["TARGETS", "layers", "resume"]  # importing these adds their targets

NET = """name: "n" input: "data" input_shape { dim: 2 dim: 3 }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" param { lr_mult: 1 } include { phase: TRAIN }
  inner_product_param { num_output: 2 } }
"""
SOLVER = f"lr_policy: 'multistep' stepvalue: 2 net_param {{ {NET} }}"


# Texts


@target(500, mutate_text)
def net(folder: Path) -> Run:
    def shapes_of(message: proto.LayerParameter, where: str) -> list[tuple[int, ...]]:
        return [(2, 3, 32, 32), *[(2,)] * len(message.top)][: len(message.top)]

    def read(path: str) -> None:
        config = read_net(path)
        for phase in (proto.TRAIN, proto.TEST):
            for layer in build(config, phase, shapes_of=shapes_of).layers:
                layer.flops()

    return of_file(folder / "net.prototxt", read)


@target(500, mutate_text)
def solver(folder: Path) -> Run:
    def read(path: str) -> None:
        config = read_solver(path)
        validate(config.message, lambda field: config.where(path=field))
        rate = LearningRate(config.message, path)
        for iteration in (0, 1, 1000, 2**31 - 1):
            rate(iteration, 0.5, PlateauState())
        nets_of_solver(config)

    return of_file(folder / "solver.prototxt", read)


@target(500, mutate_text)
def override(folder: Path) -> Run:
    """Reads values of --set, one on each line."""

    def run(data: bytes) -> None:
        overrides = data.decode("utf-8", "surrogateescape").split("\n")  # as Python decodes arguments
        try:
            parse_net(NET, "net.prototxt", overrides)
        except ConfigError:  # they were fields of solvers
            nets_of_solver(parse_solver(SOLVER, "solver.prototxt", overrides))

    return run


@target(1000, mutate_text)
def image_list(folder: Path) -> Run:
    return of_file(folder / "list.txt", read_list)


@target(300, mutate_text)
def chest_xray14(folder: Path) -> Run:
    return of_file(folder / "table.csv", lambda path: list(read_entries(path)))


@target(300, mutate_text)
def voc(folder: Path) -> Run:
    """Reads VOC's annotations of a picture at 0.png."""
    root = _one_picture(folder, "JPEGImages")
    (root / "Annotations").mkdir()
    (root / "list.txt").write_text("0")
    return of_file(root / "Annotations/0.xml", lambda path: _convert(root, f"{root}/list.txt", False))


@target(500, mutate_text)
def coco(folder: Path) -> Run:
    """Reads COCO's annotations of a picture at 0.png: boxes, and masks as runs."""
    root = _one_picture(folder, "")

    def read(path: str) -> None:
        for masks in (False, True):
            _convert(root, path, masks)

    return of_file(folder / "instances.json", read)


def _one_picture(folder: Path, below: str) -> Path:
    root = folder / "root"
    (root / below).mkdir(parents=True)
    (root / below / "0.png").write_bytes(seeds.pictures()[3])
    return root


def _convert(root: Path, annotations: str, masks: bool) -> None:
    found = read_annotations(str(root), annotations, masks)
    classes = {name: label for label, name in enumerate(found.classes, start=1)}
    for scene in found.scenes:
        for thing in scene.things if masks else ():
            draw_mask([(classes[thing.name], thing)], 12, 16)


@target(300, mutate_text)
def windows(folder: Path) -> Run:
    """Reads windows of pictures at 0.png."""
    (folder / "0.png").write_bytes(seeds.pictures()[3])

    def read(path: str) -> None:
        message = proto.LayerParameter(name="d", type="WindowData", top=["data", "label"])
        param = message.window_data_param
        param.source, param.root_folder, param.batch_size, param.context_pad = path, f"{folder}/", 4, 1
        message.transform_param.crop_size = 8
        read_data(message)

    return of_file(folder / "windows.txt", read)


@target(500, mutate_text)
def log(folder: Path) -> Run:
    """Reads the log of a run."""
    (folder / "out").mkdir()
    return of_file(folder / "run.log", lambda path: write_csv(path, f"{folder}/out"))


# Weights, states, means


@target(1500, seeds=seeds.caffemodels)
def caffemodel(folder: Path) -> Run:
    return of_file(folder / "x.caffemodel", weights.read_caffemodel)


@target(500, seeds=seeds.caffemodels)
def old_caffemodel(folder: Path) -> Run:
    return of_file(folder / "old.caffemodel", lambda path: upgrade_net_binary(path, f"{folder}/new.caffemodel"))


@target(1500, seeds=seeds.solverstates)
def solverstate(folder: Path) -> Run:
    return of_file(folder / "x.solverstate", weights.read_solverstate)


@target(300, seeds=seeds.caffemodels_h5)
def caffemodel_h5(folder: Path) -> Run:
    return of_file(folder / "x.caffemodel.h5", weights.read_caffemodel)


@target(300, seeds=seeds.solverstates_h5)
def solverstate_h5(folder: Path) -> Run:
    return of_file(folder / "x.solverstate.h5", weights.read_solverstate)


@target(500, seeds=lambda: seeds.states_of_torch("x.pth"))
def state_of_torch(folder: Path) -> Run:
    return of_file(folder / "x.pth", read_state)


@target(500, seeds=lambda: seeds.states_of_torch("x.safetensors"))
def safetensors(folder: Path) -> Run:
    return of_file(folder / "x.safetensors", read_state)


@target(300, seeds=seeds.onnx_models)
def onnx_model(folder: Path) -> Run:
    def run(path: str) -> None:
        (folder / "net").unlink(missing_ok=True)
        import_onnx(path, folder / "net", folder / "weights")

    return of_file(folder / "x.onnx", run)


@target(1500, seeds=seeds.means)
def mean(folder: Path) -> Run:
    return of_file(folder / "mean.binaryproto", read_mean)


# Data


def transformed(image: Callable[[str | None], AnyImage]) -> None:
    """Decodes an image in each colour, and cuts and mirrors it. Raises ImageErrors as data layers tell them."""
    param = proto.TransformationParameter(crop_size=8, mirror=True, mean_value=[10])
    try:
        for color in (None, COLOR, GRAY):
            pixels = as_array(image(color))
            out = np.zeros((pixels.shape[2], 8, 8), np.float32)
            Transformer(param, proto.TRAIN).apply(image(color), KeyedRandom(1, 0, 0), out)
        as_pillow(image(None))
    except ImageError as error:
        raise DataError(str(error)) from None


@target(500, seeds=seeds.pictures)
def picture(folder: Path) -> Run:
    return lambda data: transformed(lambda color: open_image(data, color))


@target(1000, seeds=seeds.datums)
def datum(folder: Path) -> Run:
    return lambda data: transformed(lambda color: decode(parse_datum(data), color))


@target(500, seeds=lambda: [seeds.annotated().SerializeToString()])
def annotated_datum(folder: Path) -> Run:
    """Reads a database in which the input is the first of two items."""
    good = seeds.annotated().SerializeToString()
    message = proto.LayerParameter(name="d", type="AnnotatedData", top=["data", "label"])
    message.data_param.batch_size = 2

    def run(data: bytes) -> None:
        message.data_param.source = str(folder / "x.mdb")
        (folder / "x.mdb").unlink(missing_ok=True)
        seeds.write_lmdb(folder / "x.mdb", [data, good])
        read_data(message)

    return run


def all_items(path: str) -> None:
    source = open_source(path)
    for index in range(min(len(source), 50)):
        source.item(index)


@target(300, seeds=seeds.clips, guided=False)
def clip(folder: Path) -> Run:
    """Reads a video file, whose format FFmpeg tells by its content."""

    def read(path: str) -> None:
        for frame in islice(read_frames(path), 50):
            frame.pixels()

    return of_file(folder / "x.mp4", read)


@target(500, seeds=seeds.tars)
def tar(folder: Path) -> Run:
    """Reads a tar as class folders, and as samples with labels."""
    return of_file(folder / "x.tar", all_items)


@target(500, seeds=seeds.tfrecords)
def tfrecord(folder: Path) -> Run:
    return of_file(folder / "x.tfrecord", all_items)


@target(500, seeds=seeds.recs)
def recordio(folder: Path) -> Run:
    return of_file(folder / "x.rec", all_items)


@target(500, seeds=seeds.zips)
def zip_source(folder: Path) -> Run:
    return of_file(folder / "x.zip", all_items)


@target(500, seeds=seeds.zips)
def archive(folder: Path) -> Run:
    """Reads a zip of images in folders, with a list in it."""

    def read(path: str) -> None:
        errors = []
        for name in ("l.txt", "t/l.txt"):
            try:
                read_text(f"{path}/{name}")
            except DataError as error:
                errors.append(error)
        tree = open_tree(path)
        for name in tree.names():
            tree.read(name)

    return of_file(folder / "x.zip", read)


@target(300, seeds=seeds.lmdbs, guided=False)
def database(folder: Path) -> Run:
    """Reads the data.mdb of an LMDB."""
    message = proto.LayerParameter(name="d", type="Data", top=["data", "label"])
    message.data_param.source, message.data_param.batch_size = str(folder), 2
    return of_file(folder / "data.mdb", lambda path: read_data(message))


@target(200, seeds=seeds.data_h5)
def data_h5(folder: Path) -> Run:
    (folder / "list.txt").write_text(f"{folder}/data.h5\n")
    message = proto.LayerParameter(name="d", type="HDF5Data", top=["data", "label"])
    message.hdf5_data_param.source, message.hdf5_data_param.batch_size = str(folder / "list.txt"), 2
    return of_file(folder / "data.h5", lambda path: read_data(message))
