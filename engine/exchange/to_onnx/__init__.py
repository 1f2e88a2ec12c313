"""How each layer type is written in ONNX: one function per type, in a file for each family."""
