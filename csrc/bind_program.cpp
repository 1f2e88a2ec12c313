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
    py::class_<Program, std::shared_ptr<Program>>(
        m, "Program",
        "A lowered net: ops in forward order, their memory, and the executor. Of n ops, step i is the forward of op i, "
        "step 2n-1-i its backward. Activation buffers have ids, from 0, which touches() gives them.")
        .def(py::init<bool, bool>(), "backward"_a, "keep_all"_a = false,
             "Begins a program without ops. backward: whether gradients may be wanted. keep_all: whether any blob or "
             "gradient may be changed between ops, so that none may share memory.")
        .def("input", &Program::input, "name"_a, "shape"_a, "wants_gradient"_a = false,
             "Makes a blob that is fed from outside, row-major float32: see Tensor.attach().")
        .def("given", &Program::given, "like"_a, "wants_gradient"_a,
             "Makes a blob that no op computes, in the layout of another program's: to run an op by itself.")
        .def("share", &Program::share, "parameter"_a,
             "Takes a parameter of another program, so that zero_gradients() knows it.")
        .def("parameter", &Program::parameter, "name"_a, "shape"_a, "wants_gradient"_a,
             "Makes a parameter, whose layout its first reader decides.")
        .def("op", &add_op, "type"_a, "name"_a, "inputs"_a, "params"_a, "attributes"_a, "shapes"_a, "gradients"_a,
             "Adds an op and returns its outputs. Raises ValueError for an unknown type, or what the op raises.\n\n"
             "Args:\n"
             "    name: the layer's, for errors and timings.\n"
             "    shapes: those of the outputs. gradients: which outputs have a gradient.")
        .def("touches", &touches, "Returns (bytes, steps that touch it) for every activation buffer, by id.")
        .def("repeatable", &repeatable,
             "Returns (op, ids of input buffers, id of the output buffer) for each op whose forward can run again.")
        .def("repeat", &Program::repeat, "op"_a, "step"_a, "Makes backward run an op's forward again before a step.")
        .def("overwrites", &overwrites,
             "Returns (step, id of an input buffer, id of the output buffer) for each result that may be written over "
             "an input of its step.")
        .def("join", &Program::join, "output"_a, "input"_a,
             "Makes two buffers one: the op of `output` writes over its `input`.")
        .def("succeed", &Program::succeed, "before"_a,
             "Takes over what the ops of another program remember, which is the same net in other shapes, and which "
             "this one replaces.")
        .def("place", &Program::place, "offsets"_a, "bytes"_a,
             "Gives every activation buffer, by id, its offset in one arena of `bytes`, and the ops their scratch.")
        .def("own", &Program::own, "tensor"_a,
             "Gives a tensor that Python reads or writes between runs memory of its own.")
        .def(
            "set_counter",
            [](Program& p, uint64_t seed, uint64_t step, uint64_t first_sample, int64_t batch) {
                p.set_counter({seed, step, first_sample, batch});
            },
            "seed"_a, "step"_a, "first_sample"_a, "batch"_a = 0,
            "Sets what random numbers are hashed from in the next pass.\n\n"
            "Args:\n"
            "    step: the iteration.\n"
            "    first_sample: the number of the pass's first sample among those of all ranks.\n"
            "    batch: samples in the pass; 0: as many as a blob has rows.")
        .def("set_ranks", &set_ranks, "count"_a, "sum"_a,
             "Sets the ranks that train together, for ops that normalise over all of them.\n\n"
             "Args:\n"
             "    sum: takes a float64 array and sums it over the ranks, in place; forward() raises what it raises.")
        .def("forward", &Program::forward, "begin"_a = 0, "end"_a = Program::all_ops, ReleaseGil(),
             "Runs the forward of ops [begin, end). Raises CommError if a server has failed.")
        .def("backward", &Program::backward, "begin"_a = 0, "end"_a = Program::all_ops, ReleaseGil(),
             "Runs the backward of ops [begin, end), last to first.")
        .def("parameters_changed", &Program::parameters_changed, ReleaseGil(),
             "Tells ops with constant parameters that these have changed by another way than Tensor.set().")
        .def("zero_gradients", &Program::zero_gradients, ReleaseGil(),
             "Clears the gradients of the parameters to whose gradients ops add.")
        .def("first_nonfinite", &Program::first_nonfinite, ReleaseGil(),
             "Runs forward again, op by op. Returns the name of the first op whose output is not finite; \"\" if all "
             "are.")
        .def("set_queue", &set_queue, "queue"_a.none(true), "gates"_a,
             "Sets the queue of buckets; None: there is none. gates: for each op the buckets that its forward waits "
             "for, "
             "and those that are ready after its backward. Raises ValueError unless there is one for every op.")
        .def("mark_ready", &Program::mark_ready, "on"_a,
             "Sets whether backward marks buckets ready: only the last micro-batch's should.")
        .def("set_board", &set_board, py::keep_alive<1, 2>(), "numbers"_a,
             "Sets the int64 array where the program writes what it is doing, for others to see: see "
             "engine/watchdog/board.py. Raises ValueError for another array.")
        .def("spans", &spans,
             "Returns (2n, 2) int64: start and end of each step of the last run, in nanoseconds of CLOCK_MONOTONIC.")
        .def(
            "needs_backward", [](const Program& p, size_t i) { return p.op(i).needs_backward(); }, "op"_a,
            "Returns whether some bottom or parameter of an op wants a gradient.")
        .def(
            "implementation", [](const Program& p, size_t i) { return p.op(i).implementation(); }, "op"_a,
            "Returns oneDNN's name of the kernel that an op runs; \"engine\" for one of our own.")
        .def(
            "reorders", &reorders, "op"_a,
            "Returns (whether in backward, layout from, layout to, bytes, nanoseconds in the last run) for each change "
            "of layout inside an op.")
        .def("__len__", &Program::size)
        .def_property_readonly("repeat_ns", &Program::repeat_ns,
                               "Nanoseconds that ops which ran forward again took in the last backward.")
        .def_property_readonly("activation_bytes", &Program::activation_bytes)
        .def_property_readonly("scratch_bytes", &Program::scratch_bytes);
}

}  // namespace engine
