// Arenas, and tensors whose values Python reads and writes.
#include <algorithm>
#include <set>

#include "arena.h"
#include "bind.h"
#include "tensor.h"

namespace engine {

using Array = py::array_t<float, py::array::c_style | py::array::forcecast>;

static py::typing::Tuple<py::int_, py::ellipsis> shape_of(const Tensor& tensor) {
    py::typing::Tuple<py::int_, py::ellipsis> shape(tensor.shape.size());
    for (size_t i = 0; i < tensor.shape.size(); i++) shape[i] = tensor.shape[i];
    return shape;
}

static Array get(const Tensor& tensor) {
    Array values(std::vector<py::ssize_t>(tensor.shape.begin(), tensor.shape.end()));
    float* const data = values.mutable_data();
    py::gil_scoped_release release;
    tensor.read(data);
    return values;
}

// Returns a tensor's own memory as an array that keeps it alive; None if its layout is a kernel's.
static std::optional<py::array_t<float>> view(const Tensor& tensor) {
    if (!tensor.dense()) return std::nullopt;
    using Keeper = std::shared_ptr<void>;
    const py::capsule owner(new Keeper(tensor.buffer->keeper()),
                            [](void* keeper) { delete static_cast<Keeper*>(keeper); });
    const std::vector<py::ssize_t> shape(tensor.shape.begin(), tensor.shape.end());
    return py::array_t<float>(shape, tensor.data(), owner);
}

static void set(Tensor& tensor, const Array& values) {
    if (values.size() != tensor.count())
        throw py::value_error("tensor '" + tensor.name + "' holds " + std::to_string(tensor.count()) + " values, got " +
                              std::to_string(values.size()));
    tensor.write(values.data());
}

// Points an input at the caller's array.
static void attach(Tensor& tensor, const py::array_t<float>& values) {
    if (tensor.home != Home::external) throw py::value_error("tensor '" + tensor.name + "' is not an input");
    if (values.size() != tensor.count() || !(values.flags() & py::array::c_style))
        throw py::value_error("input '" + tensor.name + "' wants " + std::to_string(tensor.count()) +
                              " contiguous float32 values, got " + std::to_string(values.size()));
    const auto release = [](py::object* object) {
        py::gil_scoped_acquire gil;
        delete object;
    };
    tensor.buffer->place(const_cast<float*>(values.data()),
                         std::shared_ptr<py::object>(new py::object(values), release));
}

static void place(Tensor& tensor, const std::shared_ptr<Arena>& arena, size_t offset) {
    if (offset + tensor.buffer->bytes() > arena->bytes())
        throw py::value_error("'" + tensor.name + "' does not fit into the arena");
    tensor.buffer->place(arena->data() + offset, arena);
}

// Gives blobs and gradients of a net the values of another net's. If both have memory of their own and one layout, they
// exchange that; else values are copied. Several tensors may share a buffer, which is exchanged once.
static void take_over(const std::vector<TensorPtr>& tensors, const std::vector<TensorPtr>& others) {
    const auto fixed = [](const Buffer& each) { return each.home() == Home::owned || each.home() == Home::gradient; };
    std::set<std::pair<Buffer*, Buffer*>> alike;
    for (size_t i = 0; i < std::min(tensors.size(), others.size()); i++) {
        Tensor &tensor = *tensors[i], &other = *others[i];
        if (!tensor.decided() || !other.decided()) continue;
        Buffer *const to = tensor.buffer->root(), *const from = other.buffer->root();
        if (fixed(*to) && fixed(*from) && tensor.layout == other.layout && to->bytes() == from->bytes())
            alike.insert({to, from});
        else
            set(tensor, get(other));
    }
    for (const auto& [to, from] : alike) to->swap_memory(*from);
}

// Copies values to a tensor of the same shape, in its layout and precision.
static void convert(const Tensor& from, Tensor& to) {
    dnnl::memory source = from.memory, target = to.memory;
    if (!source.get_data_handle() || !target.get_data_handle())
        throw py::value_error("convert: a tensor has no memory yet");
    py::gil_scoped_release release;
    dnnl::stream stream(cpu());
    dnnl::reorder(source, target).execute(stream, source, target);
}

void bind_tensor(py::module_& m) {
    py::class_<Arena, std::shared_ptr<Arena>>(m, "Arena", py::buffer_protocol(),
                                              "Memory that is allocated and touched once: zeros, which NumPy sees as "
                                              "an array of float32.")
        .def(py::init<size_t>(), "bytes"_a)
        .def_property_readonly("nbytes", &Arena::bytes)
        .def_buffer([](Arena& arena) {
            return py::buffer_info(reinterpret_cast<float*>(arena.data()), py::ssize_t(arena.bytes() / sizeof(float)));
        });
    py::class_<Tensor, TensorPtr>(m, "Tensor",
                                  "A blob as the executor sees it: in Caffe's shape, and in the layout of a kernel.")
        .def_readonly("name", &Tensor::name)
        .def_property_readonly("shape", &shape_of)
        .def_property_readonly("count", &Tensor::count)
        .def_property_readonly("nbytes", [](const Tensor& t) { return t.buffer ? t.layout.get_size() : 0; })
        .def_property_readonly(
            "dtype",
            [](const Tensor& t) { return t.layout.get_data_type() == dnnl::memory::data_type::bf16 ? "bf16" : "f32"; })
        .def_property_readonly(
            "layout", [](const Tensor& t) { return t.decided() ? layout_name(t.layout) : "undecided"; },
            "The name of the layout, such as aBcd16b: the axes in the order of memory, then the blocks. \"undecided\" "
            "if there is none yet.")
        .def_property_readonly(
            "is_plain", [](const Tensor& t) { return t.decided() && is_plain(t.layout); },
            "Whether the layout is row-major.")
        .def_readonly("diff", &Tensor::diff)
        .def_readwrite("accumulate", &Tensor::accumulate, "Whether ops add to this parameter's gradient.")
        .def("get", &get, "Returns the values as a dense row-major copy, float32.")
        .def(
            "view", &view,
            "Returns the values in place, as an array that keeps the memory alive; None if their layout is a kernel's.")
        .def("set", &set, "values"_a,
             "Copies values in, in row-major order. Raises ValueError if there are more or fewer than the tensor has.")
        .def(
            "convert", &convert, "to"_a,
            "Copies the values to a tensor of the same shape, in its layout and precision. Raises ValueError if one of "
            "them has no memory yet.")
        .def("attach", &attach, "values"_a.noconvert(),
             "Makes an input read the caller's array, float32, C-contiguous. Raises ValueError for a tensor that is no "
             "input, and for an array that does not fit.")
        .def("place", &place, "arena"_a, "offset"_a,
             "Puts the values at an offset, in bytes, of an arena. Raises ValueError if they do not fit into it.")
        .def(
            "like",
            [](const Tensor& t, const std::string& name) {
                auto other = std::make_shared<Tensor>(name, t.shape, t.home);
                other->plain_override = t.plain_override;
                other->decide(t.layout);
                return other;
            },
            "name"_a, "Returns a new tensor of the same shape and layout, to be placed elsewhere (a history).")
        .def("without_diff", &Tensor::without_diff,
             "Returns a view of the same values without the gradient, for readers that send none.")
        .def("with_own_diff", &Tensor::with_own_diff,
             "Returns a view of the same values with a gradient of its own, which is to be placed.")
        .def_property_readonly(
            "origin", [](const TensorPtr& t) { return t->origin ? t->origin : t; },
            "The tensor of which with_own_diff() made this view; without it the tensor itself.")
        .def(
            "decide_plain",
            [](Tensor& t) {
                if (!t.decided()) t.decide(plain_layout(t.shape));
            },
            "Makes the layout row-major, unless it is decided already.");
    m.def("take_over", &take_over, "tensors"_a, "others"_a,
          "Gives tensors the values of others, one for one. Two that are laid out alike, each with memory of its own, "
          "exchange the memory; else values are copied.");
}

}  // namespace engine
