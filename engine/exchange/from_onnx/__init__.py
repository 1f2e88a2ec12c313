"""What each operator of ONNX becomes in Caffe's layers: one function per operator, in a file for each family."""
