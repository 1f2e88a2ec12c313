"""Writes nets/resnet101.prototxt: ResNet-101 (He et al., 2015), with the blocks of nets/resnet50.py.

Published top-1 accuracy, one centre crop: 76.4%.

    python nets/resnet101.py > nets/resnet101.prototxt
"""

from resnet50 import write

if __name__ == "__main__":
    write(__file__, __doc__, "ResNet-101", (3, 4, 23, 3))
