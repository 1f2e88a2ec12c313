"""Writes nets/wide_resnet50.prototxt: the ResNet-50 of nets/resnet50.py with inner convolutions twice as wide.

It is WRN-50-2-bottleneck of Zagoruyko and Komodakis 2016, arXiv 1605.07146, table 8: 78.1% top-1, one centre crop.

    python nets/wide_resnet50.py > nets/wide_resnet50.prototxt
"""

from resnet50 import write

if __name__ == "__main__":
    write(__file__, __doc__, "Wide ResNet-50-2", (3, 4, 6, 3), wider=2)
