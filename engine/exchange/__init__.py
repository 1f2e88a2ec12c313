"""Out of Caffe, and in: nets and weights in the formats of other frameworks.

    onnx_export.export_onnx(read_net("net.prototxt"), "net.caffemodel", "net.onnx")
    onnx_import.import_onnx("net.onnx", "net.prototxt", "net.caffemodel")

The onnx package is an extra (pip install prototxt-engine[onnx]); files of PyTorch and of Keras are read without either.
"""
