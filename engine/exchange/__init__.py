"""Exports nets and weights to the formats of other frameworks, and imports them.

    onnx_export.export_onnx(read_net("net.prototxt"), "net.caffemodel", "net.onnx")
    onnx_import.import_onnx("net.onnx", "net.prototxt", "net.caffemodel")

ONNX files need the onnx package, which is an extra (pip install prototxt-engine[onnx]). Files of PyTorch and Keras need
neither framework.
"""
