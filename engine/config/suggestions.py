"""Suggests names in place of an unknown one: the name here of another framework's word, else the nearest known name,
else all known names if they are few."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_FEW = 12  # known names that a message still lists
_LOSS = "loss"
_ALIKE = 0.6  # difflib's ratio from which on two names are alike
_MANY, _LONGEST = 5000, 200  # known names, and characters of the unknown one, beyond which a search would take too long

# Words of PyTorch and Keras, in lower case without underscores -> (the name here, what the message says after it).
_ELSEWHERE = {
    # layers
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), ("Convolution", "")),
    **dict.fromkeys(("convtranspose2d", "conv2dtranspose", "transposedconvolution"), ("Deconvolution", "")),
    **dict.fromkeys(("linear", "dense", "fullyconnected"), ("InnerProduct", "")),
    **dict.fromkeys(("maxpool1d", "maxpool2d", "maxpooling2d", "maxpool"), ("Pooling", " with pool: MAX")),
    **dict.fromkeys(("avgpool1d", "avgpool2d", "averagepooling2d", "avgpool"), ("Pooling", " with pool: AVE")),
    **dict.fromkeys(
        ("adaptiveavgpool2d", "globalaveragepooling2d", "globalavgpool"),
        ("Pooling", " with pool: AVE global_pooling: true"),
    ),
    **dict.fromkeys(
        ("batchnorm1d", "batchnorm2d", "batchnorm3d", "batchnormalization", "syncbatchnorm"),
        ("BatchNorm", ", then 'Scale' with bias_term: true"),
    ),
    **dict.fromkeys(("layernorm", "layernormalization"), ("MVN", " with across_channels: true, then 'Scale'")),
    **dict.fromkeys(("instancenorm2d", "instancenorm"), ("MVN", ", then 'Scale'")),
    **dict.fromkeys(("localresponsenorm", "lrn2d"), ("LRN", "")),
    **dict.fromkeys(("crossentropyloss", "categoricalcrossentropy", "crossentropy"), ("SoftmaxWithLoss", "")),
    **dict.fromkeys(("bcewithlogitsloss", "binarycrossentropy", "bceloss"), ("SigmoidCrossEntropyLoss", "")),
    **dict.fromkeys(("nllloss",), ("MultinomialLogisticLoss", ", which takes probabilities")),
    **dict.fromkeys(("mseloss", "mse"), ("EuclideanLoss", ", half of it, averaged over the batch")),
    **dict.fromkeys(("leakyrelu",), ("ReLU", " with negative_slope")),
    **dict.fromkeys(("gelu",), ("Swish", " with beta: 1.702, within 0.021 of it")),
    **dict.fromkeys(("silu", "hardswish"), ("Swish", "")),
    **dict.fromkeys(("dropout1d", "dropout2d", "dropout3d", "alphadropout"), ("Dropout", "")),
    **dict.fromkeys(("embedding",), ("Embed", "")),
    **dict.fromkeys(("cat", "concatenate"), ("Concat", "")),
    **dict.fromkeys(("add", "residual"), ("Eltwise", "")),
    **dict.fromkeys(("view",), ("Reshape", "")),
    **dict.fromkeys(("logsoftmax",), ("Softmax", ", then 'Log'")),
    # solver types
    **dict.fromkeys(("adamw",), ("Adam", " with decoupled_weight_decay: true")),
    # fillers
    **dict.fromkeys(
        ("kaiming", "kaimingnormal", "kaiminguniform", "he", "henormal", "heuniform", "variancescaling"), ("msra", "")
    ),
    **dict.fromkeys(("glorot", "glorotuniform", "glorotnormal", "xaviernormal", "xavieruniform"), ("xavier", "")),
    **dict.fromkeys(("normal", "truncnormal", "randomnormal"), ("gaussian", "")),
    **dict.fromkeys(("zeros", "ones", "zero"), ("constant", "")),
    # learning-rate policies
    **dict.fromkeys(("cosineannealinglr", "cosinedecay", "cosineannealing"), ("cosine", "")),
    **dict.fromkeys(("cosineannealingwarmrestarts",), ("sgdr", "")),
    **dict.fromkeys(("steplr",), ("step", "")),
    **dict.fromkeys(("multisteplr", "piecewiseconstantdecay"), ("multistep", "")),
    **dict.fromkeys(("exponentiallr", "exponentialdecay", "exponential"), ("exp", "")),
    **dict.fromkeys(("polynomiallr", "polynomialdecay", "linearlr"), ("poly", "")),
    **dict.fromkeys(("reducelronplateau",), ("plateau", "")),
    **dict.fromkeys(("constant", "constantlr"), ("fixed", "")),
    # fields
    **dict.fromkeys(("lr", "learningrate"), ("base_lr", "")),
    **dict.fromkeys(("epochs", "numepochs"), ("max_epoch", "")),
    **dict.fromkeys(("numsteps", "iterations"), ("max_iter", "")),
    **dict.fromkeys(("milestones",), ("stepvalue", ", one for each")),
    **dict.fromkeys(("maxnorm", "maxgradnorm", "clipgradnorm"), ("clip_gradients", "")),
    **dict.fromkeys(("gradientaccumulationsteps", "accumulategradbatches"), ("iter_size", "")),
    **dict.fromkeys(("outchannels", "outfeatures", "units", "filters"), ("num_output", "")),
    **dict.fromkeys(("inchannels", "infeatures"), ("num_output", " alone; what comes in is known from the bottom")),
    **dict.fromkeys(("p",), ("dropout_ratio", "")),
}


def suggestion(name: str, known: Iterable[str]) -> str:
    """Returns a tail for an error message, such as "; did you mean 'max_iter'?" or "; known: LMDB", or ""."""
    known = sorted(set(known))
    here, more = _ELSEWHERE.get(name.lower().replace("_", ""), ("", ""))
    if here in known:
        return f"; here it is '{here}'{more}"
    lower, own = {candidate.lower(): candidate for candidate in reversed(known)}, name.lower()
    is_short = len(name) <= _LONGEST and len(known) <= _MANY
    for near in difflib.get_close_matches(own, lower, n=_FEW, cutoff=_ALIKE) if is_short else []:
        if _are_alike(own, near):
            return f"; did you mean '{lower[near]}'?"
    return f"; known: {', '.join(known)}" if known and len(known) <= _FEW else ""


def _are_alike(name: str, near: str) -> bool:
    """Returns whether two names that are alike still are without the "loss" at the end of both: two losses are not
    alike for being losses."""
    if not (name.endswith(_LOSS) and near.endswith(_LOSS)):
        return True
    return bool(difflib.get_close_matches(name.removesuffix(_LOSS), [near.removesuffix(_LOSS)], cutoff=_ALIKE))
