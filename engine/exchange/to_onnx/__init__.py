"""Writes layers in ONNX: one function per layer type, in a file for each family."""
