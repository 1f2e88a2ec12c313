"""Nets written in Python: layers are calls, blobs their results, and to_proto() gives the NetParameter.

    n = caffe.NetSpec()
    n.data, n.label = L.Data(source="digits_lmdb", backend=P.Data.LMDB, batch_size=64, ntop=2)
    n.conv1 = L.Convolution(n.data, num_output=20, kernel_size=5, weight_filler=dict(type="xavier"))
    n.relu1 = L.ReLU(n.conv1, in_place=True)
    print(n.to_proto())

Keyword arguments are fields of the type's own parameters, or of LayerParameter (name, param, include, loss_weight,
transform_param ...); a dict stands for a message, a list for a repeated field.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from engine import proto
from engine.config.suggestions import suggestion
from engine.errors import ConfigError
from engine.layers.registry import layer_types

_LAYER_FIELDS = proto.LayerParameter.DESCRIPTOR.fields_by_name


def param_name_dict() -> dict[str, str]:
    """Returns {"Convolution": "convolution", ...}: by layer type, the name of the field that has its parameters, but
    for "_param". If several fields have the parameters of one type, the first counts."""
    return {
        field.message_type.name.removesuffix("Parameter"): name.removesuffix("_param")
        for name, field in reversed(list(_LAYER_FIELDS.items()))
        if field.message_type is not None and name.endswith("_param")
    }


_param_names = param_name_dict()  # scripts that know Caffe's private names add to it


class Top:
    """One blob that a layer makes; further layers take it as an argument."""

    def __init__(self, fn: Function, n: int):
        self.fn, self.n = fn, n

    def to_proto(self) -> proto.NetParameter:
        """Returns the NetParameter of this blob and all that it depends on."""
        return to_proto(self)

    def _to_proto(self, layers: Messages, names: Names, autonames: Counter) -> None:
        self.fn._to_proto(layers, names, autonames)


class Function:
    """A layer: its type, the Tops that it reads, and its parameters."""

    def __init__(self, type_name: str, inputs: tuple[Top, ...], params: Mapping[str, Any]):
        for index, given in enumerate(inputs):
            if not isinstance(given, Top):
                raise TypeError(f"{type_name} input {index} is not a Top (type is {type(given)})")
        self.type_name, self.inputs, self.params = type_name, inputs, dict(params)
        self.ntop = self.params.pop("ntop", 1)
        self.in_place = self.params.pop("in_place", False)
        self.tops = tuple(Top(self, n) for n in range(self.ntop))

    def _name_of(self, thing: Top | Function, names: Names, autonames: Counter) -> str:
        """Returns the name that the caller gave to a blob or a layer, or else the layer's type with a number."""
        if thing not in names:
            autonames[self.type_name] += 1
            names[thing] = f"{self.type_name}{autonames[self.type_name]}"
        return names[thing]

    def _to_proto(self, layers: Messages, names: Names, autonames: Counter) -> None:
        """Adds the message of this layer and, before it, of those that it depends on."""
        if self in layers:
            return
        message = proto.LayerParameter(type=self.type_name)
        for given in self.inputs:
            given._to_proto(layers, names, autonames)
            message.bottom.append(layers[given.fn].top[given.n])
        message.name = self._name_of(self.tops[0] if self.tops else self, names, autonames)
        if self.in_place:
            message.top.extend(message.bottom)
        else:
            message.top.extend(self._name_of(top, names, autonames) for top in self.tops)
        for field, value in self.params.items():
            self._assign(message, field, value)
        layers[self] = message

    def _assign(self, message: proto.LayerParameter, field: str, value: object) -> None:
        own = f"{_param_names[self.type_name]}_param" if self.type_name in _param_names else None
        if own and not field.endswith("param") and field in getattr(message, own).DESCRIPTOR.fields_by_name:
            assign_proto(getattr(message, own), field, value)  # before the layer's field of the same name, as in Caffe
        elif field in _LAYER_FIELDS:
            assign_proto(message, field, value)
        elif own:
            assign_proto(getattr(message, own), field, value)
        elif self.type_name not in layer_types():
            raise ConfigError(f"unknown layer type '{self.type_name}'{suggestion(self.type_name, layer_types())}")
        else:
            raise ConfigError(
                f"{self.type_name}({field}=...): the type has no parameters of its own name; say which ones are "
                f"meant, as in {self.type_name}(convolution_param=dict({field}=...))"
            )


Messages: TypeAlias = "OrderedDict[Function, proto.LayerParameter]"
Names: TypeAlias = "dict[Top | Function, str]"


def assign_proto(message: Any, field: str, value: object) -> None:
    """Sets a field of a message: from a dict, if it is a message itself; from a list or one value, if it is repeated.
    Raises ConfigError for a field that the message does not have."""
    if field not in message.DESCRIPTOR.fields_by_name:
        known = suggestion(field, message.DESCRIPTOR.fields_by_name)
        raise ConfigError(f"{message.DESCRIPTOR.name} has no field '{field}'{known}")
    target = getattr(message, field)
    if hasattr(target, "extend"):
        for item in value if isinstance(value, list | tuple) else [value]:
            if isinstance(item, Mapping):
                _fill(target.add(), item)
            else:
                target.append(item)
    elif isinstance(value, Mapping):
        target.SetInParent()
        _fill(target, value)
    elif hasattr(target, "CopyFrom"):
        target.CopyFrom(value)
    else:
        setattr(message, field, value)


def _fill(message: Any, values: Mapping[str, object]) -> None:
    for field, value in values.items():
        assign_proto(message, field, value)


def to_proto(*tops: Top) -> proto.NetParameter:
    """Returns the NetParameter of `tops` and all that they depend on, with names made of types and numbers."""
    return _net(tops, {})


def _net(tops: Iterable[Top | Function], names: Names) -> proto.NetParameter:
    layers: Messages = OrderedDict()
    autonames: Counter = Counter()
    for top in tops:
        top._to_proto(layers, names, autonames)
    return proto.NetParameter(layer=layers.values())


class NoBlob(AttributeError, KeyError):
    """Raised for a blob that a NetSpec does not have. It is a KeyError, as in Caffe, and an AttributeError, which
    hasattr() wants, for attributes and for items alike."""

    def __str__(self) -> str:  # KeyError's would quote the message
        return str(self.args[0])


class NetSpec:
    """A net whose blobs are attributes (n.conv1) or items (n["conv1"]); their names become those of the layers. Raises
    NoBlob for a blob that it does not have."""

    tops: OrderedDict[str, Top | Function]

    def __init__(self):
        super().__setattr__("tops", OrderedDict())

    def __setattr__(self, name: str, value: Top | Function) -> None:
        self.tops[name] = value

    def __getattr__(self, name: str) -> Top | Function:
        try:
            return self.tops[name]
        except KeyError:
            raise NoBlob(f"the net has no blob '{name}'{suggestion(name, self.tops)}") from None

    def __delattr__(self, name: str) -> None:
        del self.tops[name]

    __setitem__, __getitem__, __delitem__ = __setattr__, __getattr__, __delattr__

    def __iter__(self) -> Iterator[str]:
        return iter(self.tops)

    def keys(self) -> list[str]:
        return list(self.tops)

    def vals(self) -> list[Top | Function]:
        return list(self.tops.values())

    def update(self, name: str, params: Mapping[str, Any]) -> None:
        """Adds keyword arguments to the layer that makes the blob `name`; they replace earlier ones of the same names.
        Raises NoBlob."""
        top = self[name]
        (top.fn if isinstance(top, Top) else top).params.update(params)

    def to_proto(self) -> proto.NetParameter:
        """Returns the NetParameter; its str() is the prototxt."""
        return _net(self.tops.values(), {top: name for name, top in self.tops.items()})


class Layers:
    """L.Convolution(bottom, ..., field=value) adds a layer and returns its Top, a tuple of Tops (ntop above 1), or the
    Function (ntop=0)."""

    def __getattr__(self, name: str) -> Callable[..., Any]:  # ntop tells what it returns
        if name.startswith("__"):
            raise AttributeError(name)

        def layer(*inputs: Top, **params: Any) -> Top | tuple[Top, ...] | Function:
            fn = Function(name, inputs, params)
            if not fn.ntop:
                return fn
            return fn.tops[0] if fn.ntop == 1 else fn.tops

        return layer


class Parameters:
    """P.Pooling.MAX is a value of an enumeration in the parameters of a layer type."""

    def __getattr__(self, name: str) -> Any:
        message = getattr(proto, f"{name}Parameter", None)
        if message is None:
            raise AttributeError(f"there is no {name}Parameter{suggestion(name, _param_names)}")
        return message


layers, params = Layers(), Parameters()
