"""Layers that take values of blobs as numbers of images, labels, pixels or rows must bear values that no integer
holds."""

import numpy as np
import pytest

from engine import proto
from engine.errors import DataError
from tests.layers import test_batch_reindex as batch_reindex
from tests.layers import test_box_annotator_ohem as box_annotator_ohem
from tests.layers import test_contrastive_loss as contrastive_loss
from tests.layers import test_deformable_psroi_pooling as deformable_psroi_pooling
from tests.layers import test_detection_evaluate as detection_evaluate
from tests.layers import test_psroi_align as psroi_align
from tests.layers import test_psroi_pooling as psroi_pooling
from tests.layers import test_roi_align as roi_align
from tests.layers import test_roi_pooling as roi_pooling
from tests.layers.boxes import truth_blob
from tests.layers.harness import run

ODD = pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 1e30, -1e30, 2.0**31, 2.0**63, -(2.0**63)])
RANDOM = np.random.default_rng(17)
REGION_LAYERS = pytest.mark.parametrize(
    "layer",
    [
        roi_pooling.layer(),
        psroi_pooling.layer(),
        psroi_align.layer(),
        psroi_align.layer(params="sampling_ratio: 0"),
        deformable_psroi_pooling.layer("no_trans: true sample_per_part: 2"),
        roi_align.layer("pooled_h: 2 pooled_w: 3"),
        roi_align.layer(),
    ],
    ids=[
        "ROIPooling",
        "PSROIPooling",
        "PSROIAlign",
        "PSROIAlign with sampling_ratio",
        "DeformablePSROIPooling",
        "ROIAlign",
        "ROIAlign with sampling_ratio",
    ],
)


@ODD
@pytest.mark.parametrize("column", [1, 2, 3, 4])
@REGION_LAYERS
def test_pixels(layer, column, number):
    rois = np.array([[0, 2, 2, 20, 20], [1, 2, 2, 20, 20]], np.float32)
    rois[0, column] = number
    x = RANDOM.random((2, 18, 6, 8)).astype(np.float32)
    y = run(layer, x=x, rois=rois).blobs["y"].data
    assert (y >= 0).all() and (y <= 1).all() and y[1].any()


@pytest.mark.parametrize("number", [np.nan, np.inf, 2.0**31, 2.0**63])
@REGION_LAYERS
def test_images(layer, number):
    rois = np.array([[number, 2, 2, 20, 20]], np.float32)
    with pytest.raises(DataError, match="row 0 of the regions names image"):
        run(layer, x=np.zeros((2, 18, 6, 8), np.float32), rois=rois)


@ODD
def test_rows(number):
    order = np.array([0, number], np.float32)
    with pytest.raises(DataError, match=r"index .* at position 1 is outside \[0, "):
        run(batch_reindex.layer(), x=np.zeros((3, 2), np.float32), i=order)


@ODD
def test_images_of_hard_regions(number):
    rois = np.zeros((3, 5), np.float32)
    rois[:, 0] = [0, number, 0]
    losses, labels, weights = (np.array(values, np.float32) for values in ([1, 3, 2], [4, 5, 6], [[1], [1], [1]]))
    net = run(box_annotator_ohem.layer(1), rois=rois, losses=losses, labels=labels, weights=weights)
    assert net.blobs["l"].data.ravel().tolist() == [-1, 5 if number > 0 else -1, 6]


@ODD
def test_alike(number):
    a, b = np.array([[0], [0]], np.float32), np.array([[1], [1]], np.float32)
    loss = run(contrastive_loss.layer(), a=a, b=b, s=np.array([1, number], np.float32)).blobs["y"].data
    np.testing.assert_allclose(loss, 0.5, rtol=1e-6)  # the samples are alike, and at a distance of 1


@ODD
@pytest.mark.parametrize("column", [0, 1])
def test_detections(column, number):
    found = np.array(detection_evaluate.DETECTIONS, np.float32)[None, None]
    found[0, 0, 0, column] = number
    truth = truth_blob(detection_evaluate.TRUTH)
    rows = run(detection_evaluate.layer(), proto.TEST, found=found, truth=truth).blobs["y"].data.reshape(-1, 5)
    assert (rows[3:, 0] >= 0).sum() == len(detection_evaluate.DETECTIONS) - (not number > 0)
