"""Caffe's messages: `from caffe.proto import caffe_pb2`."""

from engine.proto import caffe_pb2

__all__ = ["caffe_pb2"]
