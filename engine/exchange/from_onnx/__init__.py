"""Turns operators of ONNX into Caffe's layers: one function per operator, in a file for each family."""
