"""Reads real photographs, of CIFAR-10 and an ImageNet sample, through the data layers of published nets."""

from itertools import islice

import numpy as np
import pytest
from google.protobuf import text_format

from engine import proto
from engine.config import read_net
from engine.data import open_data
from engine.data.compute_image_mean import compute_image_mean
from engine.data.convert_imageset import Output, convert_imageset
from tests.shared import SHARED, needs_shared

CIFAR = SHARED / "data/cifar10.zip"
IMAGENET = SHARED / "data/imagenet-sample.zip"
RESNET = "zoo/surfsara/models/multinode/resnet50_448nodes/train_val.prototxt"
CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


@pytest.fixture
def imagenet_lmdb(tmp_path):
    labels = IMAGENET / "imagenet-sample/labels.txt"
    report = convert_imageset(str(IMAGENET), str(labels), str(tmp_path / "imagenet"), Output(encoded=True))
    assert report.images == 200
    return tmp_path / "imagenet"


@needs_shared("data/cifar10.zip")
def test_cifar_with_its_mean(tmp_path, open_layer):
    (tmp_path / "list").write_text(
        "".join(f"{name}/{i:04d}.jpg {k}\n" for i in range(10) for k, name in enumerate(CLASSES))
    )
    convert_imageset(f"{CIFAR}/cifar10/test", str(tmp_path / "list"), str(tmp_path / "raw"))
    convert_imageset(f"{CIFAR}/cifar10/test", str(tmp_path / "list"), str(tmp_path / "jpeg"), Output(encoded=True))
    mean = compute_image_mean(str(tmp_path / "raw"), str(tmp_path / "mean.binaryproto"))
    assert mean.shape == (3, 32, 32) and 100 < mean.mean() < 150
    totals = []
    for name in ("raw", "jpeg"):
        with open_layer(tmp_path / name, f'mean_file: "{tmp_path}/mean.binaryproto"').epoch(30) as batches:
            found = [(batch.arrays["data"][0].copy(), batch.arrays["data"][1].tolist()) for batch in batches]
        assert [len(data) for data, _ in found] == [30, 30, 30, 10]
        assert [label for _, labels in found for label in labels] == list(range(10)) * 10
        totals.append(np.concatenate([data for data, _ in found]))
    assert np.array_equal(*totals)
    assert np.abs(totals[0].mean(axis=0, dtype=np.float64)).max() < 1e-3


@needs_shared("data/cifar10.zip")
def test_cifar_classes_are_alphabetical():
    from engine.data.registry import open_source

    source = open_source(f"{CIFAR}/cifar10/test")
    found = [source.item(number) for number in range(0, len(source), 500)]
    assert len(source) == 10000 and source.classes == list(CLASSES)
    assert {key.split("/")[0]: datum.label for key, datum in found} == dict(zip(CLASSES, range(10)))


@needs_shared("data/imagenet-sample.zip")
@needs_shared(RESNET)
@pytest.mark.parametrize(("phase", "layer"), [(proto.TRAIN, 0), (proto.TEST, 1)])
def test_imagenet_through_the_layers_of_resnet50(imagenet_lmdb, phase, layer):
    config = read_net(str(SHARED / RESNET))
    message = config.message.layer[layer]
    message.data_param.source = str(imagenet_lmdb)
    source = open_data(message, phase, where=config.where(layer))
    assert source.size == 200 and source.shapes == ((3, 224, 224), ())
    results = []
    for threads in (1, 3):
        with source.batches(16, threads=threads) as prefetcher:
            batches = (batch.arrays["data"] for batch in islice(prefetcher, 2))
            results.append([(data.copy(), labels.tolist()) for data, labels in batches])
    for (data, labels), (again, same) in zip(*results):
        assert np.array_equal(data, again) and labels == same
        # In units of 128 around the means. Wrongly decoded bytes would be noise, or all alike.
        assert -1 < data.min() < -0.5 and 0.5 < data.max() < 1.3 and 0.3 < data.std() < 0.8


@needs_shared("data/imagenet-sample.zip")
def test_augmentation_keeps_the_picture(imagenet_lmdb):
    """The average over many random parts looks like the centre of the picture."""
    layer = proto.LayerParameter(name="data", type="Data")
    text_format.Parse("crop_size: 16 random_aspect_ratio_param { }", layer.transform_param)
    layer.data_param.source = str(imagenet_lmdb)
    with open_data(layer, proto.TRAIN).batches(200) as prefetcher:
        parts = sum(batch.arrays["data"][0].astype(np.float64) for batch in islice(prefetcher, 3)) / 3
    layer.transform_param.ClearField("random_aspect_ratio_param")
    layer.transform_param.resize_param.height = layer.transform_param.resize_param.width = 16
    with open_data(layer, proto.TEST).batches(200) as prefetcher:
        wholes = prefetcher.next().arrays["data"][0]
        match = [np.corrcoef(part.ravel(), whole.ravel())[0, 1] for part, whole in zip(parts, wholes)]
    assert np.median(match) > 0.6
