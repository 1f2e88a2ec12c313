"""Caffe's messages under the name that scripts import: `from caffe.proto import caffe_pb2`."""

from engine import proto

globals().update({name: value for name, value in vars(proto).items() if name[:1].isupper() and name != "REQUIRED"})
