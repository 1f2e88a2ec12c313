"""Writes nets/resnet152.prototxt: ResNet-152 (He et al., 2015), with the blocks of nets/resnet50.py.

Published top-1 accuracy, one centre crop: 77.0%: what the paper's collapsed ensembles are measured by.

    python nets/resnet152.py > nets/resnet152.prototxt
"""

from resnet50 import write

if __name__ == "__main__":
    write(__file__, __doc__, "ResNet-152", (3, 8, 36, 3))
