"""Feature extraction: computes a hidden layer's blob for every picture, and finds nearest neighbours by these features.

python examples/python/train_net.py && python examples/python/extract_features.py [FOLDER]
"""

import sys

import digits
import numpy as np
from train_net import OUT, trained

import engine.caffe as caffe


def nearest_is_same(features, labels):
    """Returns the fraction of samples whose nearest neighbour has the same label."""
    squares = (features**2).sum(1)
    distances = squares[:, None] - 2 * features @ features.T + squares
    np.fill_diagonal(distances, np.inf)
    return (labels[distances.argmin(1)] == labels).mean()


def main(folder=OUT, blob="ip1"):
    folder = trained(folder)
    net = caffe.Net(str(folder / "deploy.prototxt"), str(folder / "digits.caffemodel"), caffe.TEST)
    net.blobs["data"].reshape(60, 1, 8, 8)
    images, labels = digits.read("test")
    features = net.forward_all(data=images, blobs=[blob])[blob].reshape(len(images), -1)
    np.save(folder / f"{blob}.npy", features)
    print(f"{blob}: {features.shape[1]} features of {len(images)} pictures in {folder / f'{blob}.npy'}")
    print(f"nearest neighbour by pixels {nearest_is_same(images.reshape(len(images), -1), labels):.3f}")
    print(f"nearest neighbour by features {nearest_is_same(features, labels):.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
