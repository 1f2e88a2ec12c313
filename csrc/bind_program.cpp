// The program, to which Python adds ops, plans their memory, and runs them.
#include <cstring>

#include "bind.h"
#include "program.h"

namespace engine {

// Wraps a Python function for ops, which call it, and drop it, in threads without the GIL.
static Attributes::Callback callback_from(py::object function) {
    const auto release = [](py::object* object) {
        py::gil_scoped_acquire gil;
        delete object;
    };
    const std::shared_ptr<py::object> held(new py::object(std::move(function)), release);
    return [held](bool backward) {
        py::gil_scoped_acquire gil;
        (*held)(backward);
    };
}

static Attributes attributes_from(const py::dict& dict) {
    Attributes attributes;
    for (const auto& [key, value] : dict) {
        auto& slot = attributes.values[py::cast<std::string>(key)];
        if (py::isinstance<py::bool_>(value) || py::isinstance<py::int_>(value))
            slot = py::cast<int64_t>(value);
        else if (py::isinstance<py::float_>(value))
            slot = py::cast<double>(value);
        else if (py::isinstance<py::str>(value))
            slot = py::cast<std::string>(value);
        else if (PyCallable_Check(value.ptr()))
            slot = callback_from(py::reinterpret_borrow<py::object>(value));
        else if (py::len(value) > 0 && py::isinstance<py::float_>(value[py::int_(0)]))
            slot = py::cast<std::vector<double>>(value);
        else
            slot = py::cast<std::vector<int64_t>>(value);
    }
    return attributes;
}

static std::vector<TensorPtr> add_op(Program& program, const std::string& type, const std::string& name,
                                     const std::vector<TensorPtr>& inputs, const std::vector<TensorPtr>& params,
                                     const py::dict& attributes, const std::vector<Dims>& shapes,
                                     const std::vector<bool>& gradients) {
    OpSpec spec;
    spec.name = name;
    spec.inputs = inputs;
    spec.params = params;
    spec.attributes = attributes_from(attributes);
    spec.output_shapes = shapes;
    spec.output_gradients = gradients;
    return program.add(type, std::move(spec));
}

static std::vector<std::tuple<int64_t, std::vector<int>>> touches(Program& program) {
    std::vector<std::tuple<int64_t, std::vector<int>>> result;
    for (const auto& each : program.touches()) result.emplace_back(each.bytes, each.steps);
    return result;
}

static std::vector<std::tuple<int, std::vector<int>, int>> repeatable(Program& program) {
    std::vector<std::tuple<int, std::vector<int>, int>> result;
    for (const auto& each : program.repeatable()) result.emplace_back(each.op, each.inputs, each.output);
    return result;
}

static std::vector<std::tuple<int, int, int>> overwrites(Program& program) {
    std::vector<std::tuple<int, int, int>> result;
    for (const auto& each : program.overwrites()) result.emplace_back(each.step, each.input, each.output);
    return result;
}

static void set_queue(Program& program, const std::shared_ptr<ReadyQueue>& queue,
                      const std::vector<std::pair<std::vector<int>, std::vector<int>>>& gates) {
    std::vector<Program::Gate> typed;
    for (const auto& [waits, readies] : gates) typed.push_back({waits, readies});
    program.set_queue(queue, std::move(typed));
}

// sum: takes a float64 array and sums it over the ranks, in place; what it raises reaches the caller of forward().
static void set_ranks(Program& program, int64_t count, const py::function& sum) {
    program.set_ranks({count, [sum](double* values, int64_t size) {
                           py::gil_scoped_acquire acquire;
                           sum(py::array_t<double>({py::ssize_t(size)}, values, py::none()));
                       }});
}

static void set_board(Program& program, const py::array& numbers) {
    if (!py::array_t<int64_t, py::array::c_style>::check_(numbers) || numbers.size() < Program::board_size)
        throw py::value_error("set_board: expected int64 numbers, " + std::to_string(Program::board_size) + " or more");
    program.set_board(static_cast<int64_t*>(const_cast<void*>(numbers.data())));
}

static py::array_t<int64_t> spans(const Program& program) {
    const auto& values = program.spans();
    py::array_t<int64_t> result({py::ssize_t(values.size() / 2), py::ssize_t(2)});
    std::memcpy(result.mutable_data(), values.data(), values.size() * sizeof(int64_t));
    return result;
}

static std::string typed_name(const Layout& layout) {
    const auto type = layout.get_data_type();
    return layout_name(layout) + (type == dnnl::memory::data_type::bf16  ? " bf16"
                                  : type == dnnl::memory::data_type::f32 ? " fp32"
                                                                         : "");
}

static std::vector<std::tuple<bool, std::string, std::string, size_t, int64_t>> reorders(const Program& program,
                                                                                         size_t op) {
    std::vector<std::tuple<bool, std::string, std::string, size_t, int64_t>> result;
    for (const auto& each : program.op(op).reorders())
        result.emplace_back(each.pass == Pass::backward, typed_name(each.from), typed_name(each.to), each.to.get_size(),
                            each.nanoseconds);
    return result;
}

void bind_program(py::module_& m) {
    py::class_<Program, std::shared_ptr<Program>>(m, "Program", "Ops in forward order, their memory, and the executor.")
        .def(py::init<bool, bool>(), "backward"_a, "keep_all"_a = false)
        .def("input", &Program::input, "name"_a, "shape"_a, "wants_gradient"_a = false)
        .def("given", &Program::given, "like"_a, "wants_gradient"_a, "A blob that no op makes: to run an op by itself.")
        .def("share", &Program::share, "parameter"_a)
        .def("parameter", &Program::parameter, "name"_a, "shape"_a, "wants_gradient"_a)
        .def("op", &add_op, "type"_a, "name"_a, "inputs"_a, "params"_a, "attributes"_a, "shapes"_a, "gradients"_a)
        .def("touches", &touches, "(bytes, steps that touch it) of every activation buffer.")
        .def("repeatable", &repeatable, "(op, input buffers, output buffer) of those that can run forward twice.")
        .def("repeat", &Program::repeat, "op"_a, "step"_a)
        .def("overwrites", &overwrites, "(step, input buffer, output buffer): results that may replace an input.")
        .def("join", &Program::join, "output"_a, "input"_a)
        .def("succeed", &Program::succeed, "before"_a, "Takes over what ops remember of the same net in other shapes.")
        .def("place", &Program::place, "offsets"_a, "bytes"_a)
        .def("own", &Program::own, "tensor"_a)
        .def(
            "set_counter",
            [](Program& p, uint64_t seed, uint64_t step, uint64_t first_sample, int64_t batch) {
                p.set_counter({seed, step, first_sample, batch});
            },
            "seed"_a, "step"_a, "first_sample"_a, "batch"_a = 0)
        .def("set_ranks", &set_ranks, "count"_a, "sum"_a, "For ops that normalise over all ranks.")
        .def("forward", &Program::forward, "begin"_a = 0, "end"_a = Program::all_ops, ReleaseGil())
        .def("backward", &Program::backward, "begin"_a = 0, "end"_a = Program::all_ops, ReleaseGil())
        .def("parameters_changed", &Program::parameters_changed, ReleaseGil())
        .def("zero_gradients", &Program::zero_gradients, ReleaseGil())
        .def("first_nonfinite", &Program::first_nonfinite, ReleaseGil())
        .def("set_queue", &set_queue, "queue"_a.none(true), "gates"_a)
        .def("mark_ready", &Program::mark_ready, "on"_a)
        .def("set_board", &set_board, py::keep_alive<1, 2>(), "numbers"_a, "Where to write what it is doing.")
        .def("spans", &spans, "(2 ops, 2) int64: start and end of each step of the last run, CLOCK_MONOTONIC ns.")
        .def(
            "needs_backward", [](const Program& p, size_t i) { return p.op(i).needs_backward(); }, "op"_a)
        .def(
            "implementation", [](const Program& p, size_t i) { return p.op(i).implementation(); }, "op"_a)
        .def("reorders", &reorders, "op"_a, "(backward?, from, to, bytes, ns of the last run) of each in an op.")
        .def("__len__", &Program::size)
        .def_property_readonly("repeat_ns", &Program::repeat_ns)
        .def_property_readonly("activation_bytes", &Program::activation_bytes)
        .def_property_readonly("scratch_bytes", &Program::scratch_bytes);
}

}  // namespace engine
