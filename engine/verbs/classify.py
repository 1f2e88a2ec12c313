"""Prints the most likely classes of each image. The net may be a deploy.prototxt with an Input layer, or the training
net: then images are preprocessed like its TEST data (crop, mean, scale), unless options say otherwise.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from engine.verbs.options import add_common, add_consent, comma_separated, finite, numbers, positive, two_numbers

ORDER = 130
SUMMARY = "print the most likely classes of images"
EXAMPLES = [
    "engine classify --model deploy.prototxt --weights x.caffemodel --mean_file mean.binaryproto "
    "--labels synset_words.txt cat.jpg",
    "engine classify --model nets/resnet50.prototxt --weights resnet50.caffemodel cat.jpg dog.jpg",
]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("images", metavar="IMAGE", nargs="+", help="JPEG, PNG, ...")
    parser.add_argument("--model", "--model_def", required=True, metavar="FILE", help="the net, a prototxt")
    parser.add_argument(
        "--weights",
        "--pretrained_model",
        type=comma_separated,
        required=True,
        metavar="A,B",
        help=".caffemodel files, matched by layer name",
    )
    mean = parser.add_mutually_exclusive_group()
    mean.add_argument("--mean_file", default="", metavar="FILE", help="a mean image to subtract, a .binaryproto")
    mean.add_argument("--mean_value", type=numbers, default=[], metavar="B,G,R", help="a mean for each channel")
    parser.add_argument(
        "--labels",
        metavar="FILE",
        help="names of the classes, one per line (default: a labels.txt with the data or beside the "
        "net, or the data's class folders)",
    )
    parser.add_argument("--input_scale", type=finite, metavar="X", help="factor applied after the mean is subtracted")
    parser.add_argument(
        "--images_dim",
        type=two_numbers,
        metavar="H,W",
        help="size to resize to before the centre crop (default: that of the net's data, else of its input)",
    )
    parser.add_argument("--top", type=positive, default=5, metavar="N", help="classes to print (default: 5)")
    add_consent(parser)
    add_common(parser)


def run(options: Namespace) -> int:
    from engine.inference.classify import Classifier, Preprocessing, best, found_labels, read_labels
    from engine.report.log import log, set_up
    from engine.verbs.runtime import asked_net, show

    set_up()
    config = asked_net(options, options.model)
    asked = Preprocessing(options.images_dim, options.mean_file, options.mean_value, options.input_scale)
    classifier = Classifier(config, options.weights, asked)
    count = classifier.classes
    labels = read_labels(options.labels, count) if options.labels else found_labels(config, count)
    if classifier.gives:
        log(f"The numbers are {classifier.gives}")
    for image in options.images:
        show(f"---------- Prediction for {image} ----------")
        for score, label in best(classifier.scores(image), options.top, labels):
            show(f'{score:.4f} - "{label}"')
    return 0
