"""Nets written in Python."""

import pytest

import engine.caffe as caffe
from engine.caffe import layers as L
from engine.caffe import params as P
from engine.config import parse_net
from engine.errors import ConfigError
from engine.net import Net
from engine.proto import caffe_pb2


def lenet():
    n = caffe.NetSpec()
    n.data = L.Input(input_param=dict(shape=[dict(dim=[8, 1, 28, 28])]))
    n.label = L.Input(input_param=dict(shape=dict(dim=8)))
    n.conv1 = L.Convolution(
        n.data,
        kernel_size=5,
        num_output=20,
        weight_filler=dict(type="xavier"),
        param=[dict(lr_mult=1), dict(lr_mult=2)],
    )
    n.pool1 = L.Pooling(n.conv1, kernel_size=2, stride=2, pool=P.Pooling.AVE)
    n.relu1 = L.ReLU(n.pool1, in_place=True, name="renamed")
    n.ip = L.InnerProduct(n.relu1, num_output=10, weight_filler=dict(type="xavier"))
    n.loss = L.SoftmaxWithLoss(n.ip, n.label, loss_weight=2, include=dict(phase=caffe.TRAIN))
    return n


def test_messages():
    message = lenet().to_proto()
    layers = {layer.name: layer for layer in message.layer}
    assert list(layers) == ["data", "label", "conv1", "pool1", "renamed", "ip", "loss"]
    conv = layers["conv1"]
    assert (conv.type, list(conv.bottom), list(conv.top)) == ("Convolution", ["data"], ["conv1"])
    assert list(conv.convolution_param.kernel_size) == [5]
    assert [spec.lr_mult for spec in conv.param] == [1, 2]
    assert layers["pool1"].pooling_param.pool == caffe_pb2.PoolingParameter.AVE
    assert (list(layers["renamed"].bottom), list(layers["renamed"].top)) == (["pool1"], ["pool1"])
    assert list(layers["ip"].bottom) == ["pool1"]
    assert list(layers["loss"].loss_weight) == [2]
    assert [rule.phase for rule in layers["loss"].include] == [caffe_pb2.TRAIN]


def test_the_text_builds_and_trains():
    net = Net(parse_net(str(lenet().to_proto())))
    assert net.blobs["ip"].shape == (8, 10)
    net.forward()
    net.backward()


def test_several_tops_and_none():
    n = caffe.NetSpec()
    n.data, n.label = L.Data(
        source="db", backend=P.Data.LMDB, batch_size=4, ntop=2, transform_param=dict(scale=0.5, mean_value=[1, 2, 3])
    )
    n.quiet = L.Silence(n.label, ntop=0)
    n["eltwise"] = L.Eltwise(n.data, n["data"], operation=P.Eltwise.SUM, coeff=[1, -1])
    data, quiet, eltwise = n.to_proto().layer
    assert (data.name, list(data.top)) == ("data", ["data", "label"])
    assert (data.data_param.batch_size, list(data.transform_param.mean_value)) == (4, [1, 2, 3])
    assert (quiet.name, list(quiet.bottom), list(quiet.top)) == ("quiet", ["label"], [])
    assert list(eltwise.bottom) == ["data", "data"]
    assert n.keys() == ["data", "label", "quiet", "eltwise"]
    del n.quiet
    assert len(n.to_proto().layer) == 2


def test_parameters_that_change_later():
    """SSD's scripts freeze layers so."""
    n = lenet()
    n.quiet = L.Silence(n.label, ntop=0)
    n.update("conv1", dict(param=[dict(lr_mult=0), dict(lr_mult=0)], num_output=8))
    n.update("quiet", dict(include=dict(phase=caffe.TEST)))
    layers = {layer.name: layer for layer in n.to_proto().layer}
    conv = layers["conv1"]
    assert [spec.lr_mult for spec in conv.param] == [0, 0]
    assert (conv.convolution_param.num_output, list(conv.convolution_param.kernel_size)) == (8, [5])
    assert layers["quiet"].include[0].phase == caffe.TEST
    with pytest.raises(AttributeError, match="no blob 'conv2'; did you mean 'conv1'"):
        n.update("conv2", {})


def test_names_that_nobody_gave():
    data = L.DummyData(shape=dict(dim=[1, 2]))
    first = L.InnerProduct(data, num_output=3)
    message = caffe.to_proto(L.Eltwise(first, L.InnerProduct(first, num_output=3)))
    assert [layer.name for layer in message.layer] == ["DummyData1", "InnerProduct1", "InnerProduct2", "Eltwise1"]
    assert list(message.layer[-1].bottom) == ["InnerProduct1", "InnerProduct2"]
    assert first.to_proto() == caffe.to_proto(first)


def test_parameters_of_other_types():
    n = caffe.NetSpec()
    n.data = L.Input(shape=dict(dim=[1, 4, 8, 8]))
    n.up = L.Deconvolution(n.data, convolution_param=dict(num_output=4, kernel_size=4, stride=2, bias_term=False))
    assert n.to_proto().layer[1].convolution_param.bias_term is False
    n.bad = L.Deconvolution(n.data, num_output=4)
    with pytest.raises(ConfigError, match="convolution_param=dict"):
        n.to_proto()


def test_mistakes():
    n = caffe.NetSpec()
    n.data = L.Input(shape=dict(dim=[1, 4]))
    with pytest.raises(TypeError, match=r"Concat input 1 is not a Top \(type is <class 'tuple'>\)"):
        L.Concat(n.data, L.Data(ntop=2))
    with pytest.raises(AttributeError, match="no blob 'dta'; did you mean 'data'"):
        n.ip = L.InnerProduct(n.dta, num_output=1)
    n.ip = L.InnerProduct(n.data, num_outputs=1)
    with pytest.raises(ConfigError, match="no field 'num_outputs'; did you mean 'num_output'"):
        n.to_proto()
    n.ip = L.InnerProdct(n.data, num_output=1)
    with pytest.raises(ConfigError, match=r"unknown layer type 'InnerProdct'; did you mean 'InnerProduct'"):
        n.to_proto()
    with pytest.raises(AttributeError, match="did you mean 'Pooling'"):
        P.Poling.MAX  # noqa: B018


def test_a_blob_that_is_not_there():
    """As in Caffe, both ways of asking raise a KeyError. Here it is also an AttributeError."""
    n = caffe.NetSpec()
    n.data = L.Input(shape=dict(dim=[1, 4]))
    for error in (KeyError, AttributeError):
        with pytest.raises(error, match=r"^the net has no blob 'dta'; did you mean 'data'"):
            n["dta"]
        with pytest.raises(error, match=r"^the net has no blob 'dta'; did you mean 'data'"):
            n.dta  # noqa: B018
    assert hasattr(n, "data") and not hasattr(n, "dta") and getattr(n, "dta", 3) == 3


def test_names_of_the_module_that_scripts_import():
    from engine.caffe.net_spec import Layers, Parameters, assign_proto, param_name_dict

    assert Layers().ReLU(Layers().Input()).fn.type_name == "ReLU" and Parameters().Pooling.AVE == P.Pooling.AVE
    assert type(L) is Layers and type(P) is Parameters
    names = param_name_dict()
    assert (names["Convolution"], names["InnerProduct"], names["Data"]) == ("convolution", "inner_product", "data")
    message = caffe_pb2.LayerParameter()
    assign_proto(message, "param", [dict(lr_mult=2), dict(lr_mult=0)])
    assign_proto(message, "convolution_param", dict(kernel_size=3, weight_filler=dict(type="xavier")))
    assign_proto(message, "name", "conv")
    assert [spec.lr_mult for spec in message.param] == [2, 0] and message.name == "conv"
    assert message.convolution_param.weight_filler.type == "xavier" and message.convolution_param.kernel_size == [3]


def test_parameters_that_a_script_gives_to_a_type(monkeypatch):
    """Scripts for segmentation do so."""
    monkeypatch.setitem(caffe.net_spec._param_names, "Deconvolution", "convolution")
    up = L.Deconvolution(L.Input(shape=dict(dim=[1, 4, 8, 8])), num_output=4, kernel_size=4, stride=2, name="up")
    param = up.to_proto().layer[1].convolution_param
    assert (param.num_output, param.kernel_size, param.stride) == (4, [4], [2])


def test_a_keyword_that_both_the_layer_and_its_parameters_have():
    """Many scripts have engine=P.Pooling.CAFFE. As in Caffe, the keyword goes to the parameters of the layer's type."""
    n = caffe.NetSpec()
    n.x = L.Input(shape=dict(dim=[1, 3, 8, 8]))
    n.pool = L.Pooling(n.x, kernel_size=2, engine=P.Pooling.CAFFE)
    n.conv = L.Convolution(n.pool, num_output=2, kernel_size=1, engine=P.Convolution.CAFFE)
    layers = n.to_proto().layer
    assert layers[1].pooling_param.engine == P.Pooling.CAFFE and not layers[1].HasField("engine")
    assert layers[2].convolution_param.engine == P.Convolution.CAFFE
