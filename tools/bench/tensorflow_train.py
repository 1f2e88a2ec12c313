#!/usr/bin/env python3
"""Trains a net of keras.applications with TensorFlow, as a rival in tools/bench/train.py. Prints one line of JSON.

    python tools/bench/tensorflow_train.py --net resnet50 --batch_size 32 --threads 2 --precision bf16

A step is forward, loss, backward and SGD with momentum and weight decay as one compiled graph (tf.function); in phase
TEST it is forward and loss. For bf16 it uses Keras's policy mixed_bfloat16. Images are channels last, the only layout
that TensorFlow has on processors. Only tensorflow is needed.
"""

import argparse
import json
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf
from own_process import peak_memory, process_age
from tensorflow import keras

NETS = {
    "resnet50": (keras.applications.ResNet50, 224),
    "vgg16": (keras.applications.VGG16, 224),
    "inception_v3": (keras.applications.InceptionV3, 299),
    "inception_resnet_v2": (keras.applications.InceptionResNetV2, 299),
    "densenet121": (keras.applications.DenseNet121, 224),
}
CLASSES = 1000


class Training:
    """One net, with a batch that stays the same."""

    def __init__(self, options):
        keras.mixed_precision.set_global_policy("mixed_bfloat16" if options.precision == "bf16" else "float32")
        make, size = NETS[options.net]
        self.net = make(weights=None, classes=CLASSES, classifier_activation=None)
        self.images = tf.random.normal((options.batch_size, size, size, 3))
        self.labels = tf.random.uniform((options.batch_size,), 0, CLASSES, tf.int32)
        self.update = keras.optimizers.SGD(1e-4, momentum=0.9, weight_decay=1e-4)
        self.update.build(self.net.trainable_variables)
        self.run = tf.function(self.learn if options.phase == "TRAIN" else self.loss)

    def step(self) -> float:
        """Does a step, and returns its seconds."""
        begin = time.perf_counter()
        self.run().numpy()
        return time.perf_counter() - begin

    def learn(self):
        with tf.GradientTape() as tape:
            loss = self.loss(training=True)
        gradients = tape.gradient(loss, self.net.trainable_variables)
        self.update.apply(gradients, self.net.trainable_variables)
        return loss

    def loss(self, training=False):
        scores = tf.cast(self.net(self.images, training=training), tf.float32)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(self.labels, scores))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", choices=NETS, default="resnet50")
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--phase", choices=["TRAIN", "TEST"], default="TRAIN")
    parser.add_argument("--iterations", type=int, default=5)
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    training = Training(options)
    training.step()
    to_first_iteration = process_age()
    training.step()
    steps = [training.step() for _ in range(options.iterations)]
    result = {
        "images_per_second": options.batch_size / statistics.median(steps),
        "peak_memory_bytes": peak_memory(),
        "to_first_iteration_s": to_first_iteration,
        "version": tf.__version__,
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
