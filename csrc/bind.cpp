// The Python face of the extension, and the only file that speaks pybind11. Anything that can block or take long runs
// without the GIL.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <optional>

#include "arena.h"
#include "image.h"
#include "program.h"
#include "ready_queue.h"
#include "threads.h"
#include "update.h"
#include "wire.h"

namespace py = pybind11;
using namespace py::literals;

namespace engine {

using Array = py::array_t<float, py::array::c_style | py::array::forcecast>;
using ReleaseGil = py::call_guard<py::gil_scoped_release>;

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

static py::tuple shape_of(const Tensor& tensor) {
    py::tuple shape(tensor.shape.size());
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

// The bytes themselves as an array that keeps `owner` alive; None where they are laid out for a kernel.
static py::object view(const Tensor& tensor, const py::object& owner) {
    if (!tensor.dense()) return py::none();
    const std::vector<py::ssize_t> shape(tensor.shape.begin(), tensor.shape.end());
    return py::array_t<float>(shape, tensor.data(), owner);
}

static void set(Tensor& tensor, const Array& values) {
    if (values.size() != tensor.count())
        throw py::value_error("tensor '" + tensor.name + "' holds " + std::to_string(tensor.count()) + " values, got " +
                              std::to_string(values.size()));
    tensor.write(values.data());
}

// Points an input at the caller's array, which must stay alive until it is attached elsewhere.
static void attach(Tensor& tensor, const py::array_t<float>& values) {
    if (tensor.home != Home::external) throw py::value_error("tensor '" + tensor.name + "' is not an input");
    if (values.size() != tensor.count() || !(values.flags() & py::array::c_style))
        throw py::value_error("input '" + tensor.name + "' wants " + std::to_string(tensor.count()) +
                              " contiguous float32 values, got " + std::to_string(values.size()));
    tensor.buffer->place(const_cast<float*>(values.data()));
}

static void place(Tensor& tensor, Arena& arena, size_t offset) {
    if (offset + tensor.buffer->bytes() > arena.bytes())
        throw py::value_error("'" + tensor.name + "' does not fit into the arena");
    tensor.buffer->place(arena.data() + offset);
}

static void bind_tensor(py::module_& m) {
    py::class_<Arena>(m, "Arena", py::buffer_protocol(), "Bytes allocated and touched once; a buffer of float32.")
        .def(py::init<size_t>(), "bytes"_a)
        .def_property_readonly("nbytes", &Arena::bytes)
        .def_buffer([](Arena& arena) {
            return py::buffer_info(reinterpret_cast<float*>(arena.data()), py::ssize_t(arena.bytes() / sizeof(float)));
        });
    py::class_<Tensor, TensorPtr>(m, "Tensor", "A blob as the executor sees it: Caffe's shape, the kernel's layout.")
        .def_readonly("name", &Tensor::name)
        .def_property_readonly("shape", &shape_of)
        .def_property_readonly("count", &Tensor::count)
        .def_property_readonly("nbytes", [](const Tensor& t) { return t.buffer ? t.layout.get_size() : 0; })
        .def_property_readonly(
            "dtype",
            [](const Tensor& t) { return t.layout.get_data_type() == dnnl::memory::data_type::bf16 ? "bf16" : "f32"; })
        .def_property_readonly("layout",
                               [](const Tensor& t) { return t.decided() ? layout_name(t.layout) : "undecided"; })
        .def_property_readonly("is_plain", [](const Tensor& t) { return t.decided() && is_plain(t.layout); })
        .def_property_readonly("decided", &Tensor::decided)
        .def_readonly("diff", &Tensor::diff)
        .def_readwrite("accumulate", &Tensor::accumulate)
        .def("get", &get, "A dense row-major float32 copy.")
        .def("view", &view, "owner"_a,
             "The values in place, as an array that keeps `owner` (who has the memory) alive; None if not row-major.")
        .def("set", &set, "values"_a, "Copies dense row-major values in; raises ValueError on another count.")
        .def("attach", &attach, "values"_a.noconvert())
        .def("place", &place, "arena"_a, "offset"_a, py::keep_alive<1, 2>())
        .def(
            "like",
            [](const Tensor& t, const std::string& name) {
                auto other = std::make_shared<Tensor>(name, t.shape, t.home);
                other->plain_override = t.plain_override;
                other->decide(t.layout);
                return other;
            },
            "name"_a, "Another tensor of the same shape and layout, to be placed elsewhere (an optimizer's history).")
        .def("decide_plain", [](Tensor& t) {
            if (!t.decided()) t.decide(plain_layout(t.shape));
        });
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

static py::list touches(Program& program) {
    py::list result;
    for (const auto& each : program.touches()) result.append(py::make_tuple(each.bytes, each.steps));
    return result;
}

static py::list repeatable(Program& program) {
    py::list result;
    for (const auto& each : program.repeatable()) result.append(py::make_tuple(each.op, each.inputs, each.output));
    return result;
}

static py::list overwrites(Program& program) {
    py::list result;
    for (const auto& each : program.overwrites()) result.append(py::make_tuple(each.step, each.input, each.output));
    return result;
}

static void set_queue(Program& program, const std::shared_ptr<ReadyQueue>& queue,
                      const std::vector<std::pair<std::vector<int>, std::vector<int>>>& gates) {
    std::vector<Program::Gate> typed;
    for (const auto& [waits, readies] : gates) typed.push_back({waits, readies});
    program.set_queue(queue, std::move(typed));
}

// `sum` takes a float64 array and adds it up over the ranks in place; what it raises reaches the caller of forward().
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

static py::list reorders(const Program& program, size_t op) {
    py::list result;
    for (const auto& each : program.op(op).reorders())
        result.append(py::make_tuple(each.pass == Pass::backward, typed_name(each.from), typed_name(each.to),
                                     each.to.get_size(), each.nanoseconds));
    return result;
}

static void bind_program(py::module_& m) {
    py::class_<Program, std::shared_ptr<Program>>(m, "Program", "Ops in forward order, their memory, and the executor.")
        .def(py::init<bool>(), "backward"_a)
        .def("input", &Program::input, "name"_a, "shape"_a, "wants_gradient"_a = false)
        .def("share", &Program::share, "parameter"_a)
        .def("parameter", &Program::parameter, "name"_a, "shape"_a, "wants_gradient"_a)
        .def("op", &add_op, "type"_a, "name"_a, "inputs"_a, "params"_a, "attributes"_a, "shapes"_a, "gradients"_a)
        .def("touches", &touches, "(bytes, steps that touch it) of every activation buffer.")
        .def("repeatable", &repeatable, "(op, input buffers, output buffer) of those that can run forward twice.")
        .def("repeat", &Program::repeat, "op"_a, "step"_a)
        .def("overwrites", &overwrites, "(step, input buffer, output buffer): results that may replace an input.")
        .def("join", &Program::join, "output"_a, "input"_a)
        .def("place", &Program::place, "offsets"_a, "bytes"_a)
        .def("own", &Program::own, "tensor"_a)
        .def(
            "set_counter",
            [](Program& p, uint64_t seed, uint64_t step, uint64_t first_sample) {
                p.set_counter({seed, step, first_sample});
            },
            "seed"_a, "step"_a, "first_sample"_a)
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
    m.def("op_types", [] {
        std::vector<std::string> names;
        for (const auto& entry : op_registry()) names.push_back(entry.first);
        return names;
    });
}

using FloatArray = py::array_t<float, py::array::c_style>;

// No conversion: an update of a copy would be lost.
static float* arena_pointer(const py::array& array, py::ssize_t count, const char* what) {
    if (!FloatArray::check_(array) || array.ndim() != 1 || array.size() != count || !array.writeable())
        throw py::value_error(std::string(what) + ": expected a writable float32 array of " + std::to_string(count) +
                              " elements");
    return static_cast<float*>(const_cast<void*>(array.data()));
}

static std::unique_ptr<Updater> make_updater(const std::string& rule, const py::array& weights,
                                             const py::array& gradients, const std::vector<py::array>& histories,
                                             const std::vector<std::vector<Segment>>& buckets, const Hyper& hyper) {
    const py::ssize_t count = weights.size();
    std::vector<float*> pointers;
    for (const py::array& history : histories) pointers.push_back(arena_pointer(history, count, "history"));
    return std::make_unique<Updater>(rule, arena_pointer(weights, count, "weights"),
                                     arena_pointer(gradients, count, "gradients"), std::move(pointers), int64_t(count),
                                     buckets, hyper);
}

static py::tuple event_tuple(const ReadyQueue::Event& e) {
    return py::make_tuple(e.step, e.bucket, e.server, e.ready, e.start, e.reduced, e.end);
}

static void bind_queue(py::module_& m) {
    py::register_exception_translator([](std::exception_ptr p) {
        try {
            if (p) std::rethrow_exception(p);
        } catch (const ParkedError& e) {
            PyErr_SetString(py::module_::import("engine.errors").attr("CommError").ptr(), e.what());
        }
    });
    py::class_<ReadyQueue, std::shared_ptr<ReadyQueue>>(m, "ReadyQueue")
        .def(py::init<int>(), "buckets"_a)
        .def("__len__", &ReadyQueue::size)
        .def("begin_step", &ReadyQueue::begin_step, "step"_a)
        .def("ready", &ReadyQueue::ready, "bucket"_a, ReleaseGil())
        .def("wait_ready", &ReadyQueue::wait_ready, "bucket"_a, "timeout"_a = -1.0, ReleaseGil())
        .def("wait_first", &ReadyQueue::wait_first, "order"_a, ReleaseGil())
        .def("reduced", &ReadyQueue::reduced, "bucket"_a, ReleaseGil())
        .def("done", &ReadyQueue::done, "bucket"_a, "server"_a = 0, ReleaseGil())
        .def("wait_done", &ReadyQueue::wait_done, "bucket"_a, ReleaseGil())
        .def("wait_all_done", &ReadyQueue::wait_all_done, ReleaseGil())
        .def("fail", &ReadyQueue::fail, "message"_a, ReleaseGil())
        .def("close", &ReadyQueue::close, ReleaseGil())
        .def("missing", &ReadyQueue::missing)
        .def_property_readonly("stopped", &ReadyQueue::stopped)
        .def(
            "times", [](const ReadyQueue& queue, int bucket) { return event_tuple(queue.times(bucket)); }, "bucket"_a)
        .def("record", &ReadyQueue::record, "on"_a)
        .def("take_events",
             [](ReadyQueue& queue) {
                 py::list events;
                 for (const auto& event : queue.take_events()) events.append(event_tuple(event));
                 return events;
             })
        .def("waited_ns", py::overload_cast<>(&ReadyQueue::waited_ns, py::const_))
        .def("waited_ns", py::overload_cast<int>(&ReadyQueue::waited_ns, py::const_), "bucket"_a);
}

// The arrays of a reduction or an update, checked: a kernel writes where it is told to.
template <typename T>
static T* array_pointer(const std::optional<py::array>& array, py::ssize_t least, const char* what) {
    if (!array) return nullptr;
    if (!py::array_t<T, py::array::c_style>::check_(*array) || array->size() < least || !array->writeable())
        throw py::value_error(std::string(what) + ": expected a writable, contiguous array of " +
                              std::to_string(least) + " or more, of another type perhaps");
    return static_cast<T*>(const_cast<void*>(array->data()));
}

static void apply_range(const Updater& updater, int bucket, int64_t begin, int64_t end,
                        const std::optional<py::array>& packed, bool keep) {
    const uint16_t* const from = array_pointer<uint16_t>(packed, end - begin, "packed");
    py::gil_scoped_release release;
    updater.apply_range(bucket, begin, end, from, keep);
}

static void bind_updater(py::module_& m) {
    py::class_<Segment>(m, "Segment")
        .def(py::init([](int64_t begin, int64_t end, float lr_mult, float decay_mult, int parameter) {
                 return Segment{begin, end, lr_mult, decay_mult, parameter};
             }),
             "begin"_a, "end"_a, "lr_mult"_a = 1.0f, "decay_mult"_a = 1.0f, "parameter"_a = 0)
        .def_readonly("begin", &Segment::begin)
        .def_readonly("end", &Segment::end)
        .def_readonly("lr_mult", &Segment::lr_mult)
        .def_readonly("decay_mult", &Segment::decay_mult)
        .def_readonly("parameter", &Segment::parameter);
    py::class_<Hyper>(m, "Hyper")
        .def(py::init([](float momentum, float momentum2, float delta, float rms_decay, float weight_decay, bool l1,
                         float local_ratio, bool local_clip) {
                 return Hyper{momentum, momentum2, delta, rms_decay, weight_decay, l1, local_ratio, local_clip};
             }),
             "momentum"_a = 0.0f, "momentum2"_a = 0.999f, "delta"_a = 1e-8f, "rms_decay"_a = 0.99f,
             "weight_decay"_a = 0.0f, "l1"_a = false, "local_ratio"_a = 0.0f, "local_clip"_a = false);
    py::class_<Updater>(m, "Updater")
        .def(py::init(&make_updater), "rule"_a, "weights"_a, "gradients"_a, "histories"_a, "buckets"_a, "hyper"_a,
             py::keep_alive<1, 3>(), py::keep_alive<1, 4>(), py::keep_alive<1, 5>())
        .def("set_step", &Updater::set_step, "rate"_a, "scale"_a, "iteration"_a, "momentum_correction"_a = 1.0)
        .def("set_clip_factor", &Updater::set_clip_factor, "factor"_a)
        .def("measure", &Updater::measure, "bucket"_a, "threads"_a = 1, ReleaseGil())
        .def("set_local_rates", &Updater::set_local_rates)
        .def_property_readonly("has_local_rates", &Updater::has_local_rates)
        .def("apply", py::overload_cast<int, int>(&Updater::apply, py::const_), "bucket"_a, "threads"_a = 1,
             ReleaseGil())
        .def("apply_range", &apply_range, "bucket"_a, "begin"_a, "end"_a, "packed"_a = py::none(), "keep"_a = true)
        .def_property_readonly("buckets", &Updater::buckets)
        .def_property_readonly("histories", &Updater::histories);
    m.def("update_rules", [] {  // name -> number of histories
        py::dict rules;
        for (const auto& rule : update_rules()) rules[rule.name] = rule.histories;
        return rules;
    });
}

// rows: (parts, stride), of which `count` are added up.
static void check_rows(const py::array& rows, int own, py::ssize_t count) {
    if (rows.ndim() != 2 || count > rows.shape(1) || own < 0 || own >= rows.shape(0))
        throw py::value_error("rows must be (parts, stride), stride at least the size of the sum, own one of them");
}

static void bind_wire(py::module_& m) {
    m.def(
        "pack_bf16",
        [](const py::array& values, const py::array& packed, const std::optional<py::array>& residual) {
            const py::ssize_t count = values.size();
            const float* const from = array_pointer<float>(values, count, "values");
            uint16_t* const to = array_pointer<uint16_t>(packed, count, "packed");
            float* const rest = array_pointer<float>(residual, count, "residual");
            py::gil_scoped_release release;
            pack_bf16(from, rest, to, count);
        },
        "values"_a, "packed"_a, "residual"_a = py::none(), "float32 to bfloat16, held as uint16.");
    m.def(
        "sum_bf16",
        [](const py::array& rows, int own, const py::array& values, const py::array& packed,
           const std::optional<py::array>& residual) {
            const py::ssize_t count = values.size();
            check_rows(rows, own, count);
            const uint16_t* const from = array_pointer<uint16_t>(rows, rows.size(), "rows");
            const float* const mine = array_pointer<float>(values, count, "values");
            uint16_t* const to = array_pointer<uint16_t>(packed, count, "packed");
            float* const rest = array_pointer<float>(residual, count, "residual");
            const int64_t parts = rows.shape(0), stride = rows.shape(1);
            py::gil_scoped_release release;
            sum_bf16(from, parts, stride, own, mine, rest, to, count);
        },
        "rows"_a, "own"_a, "values"_a, "packed"_a, "residual"_a = py::none(),
        "Sums the rows (parts, stride) of bfloat16 in float32; row `own` is not read: it is `values`, packed.");
    m.def(
        "sum_rows",
        [](const py::array& rows, int own, const py::array& values) {
            const py::ssize_t count = values.size();
            check_rows(rows, own, count);
            const float* const from = array_pointer<float>(rows, rows.size(), "rows");
            float* const mine = array_pointer<float>(values, count, "values");
            const int64_t parts = rows.shape(0), stride = rows.shape(1);
            py::gil_scoped_release release;
            sum_rows(from, parts, stride, own, mine, count);
        },
        "rows"_a, "own"_a, "values"_a,
        "Sums the rows (parts, stride) of float32 into `values`, which are what counts as row `own`.");
    m.def(
        "unpack_bf16",
        [](const py::array& packed, const py::array& values) {
            const py::ssize_t count = values.size();
            const uint16_t* const from = array_pointer<uint16_t>(packed, count, "packed");
            float* const to = array_pointer<float>(values, count, "values");
            py::gil_scoped_release release;
            unpack_bf16(from, to, count);
        },
        "packed"_a, "values"_a);
}

// One image into one slot of a batch. pixels: (H, W, C) of uint8 or float32 with any strides; out: (C, crop_h, crop_w),
// dense.
template <typename T>
static void transform_pixels(const py::array& pixels, const CropWindow& window, const Mean& mean, float scale,
                             float* out) {
    const auto stride = [&](int axis) { return std::ptrdiff_t(pixels.strides(axis) / py::ssize_t(sizeof(T))); };
    const ImageView<T> view{static_cast<const T*>(pixels.data()),
                            int(pixels.shape(2)),
                            int(pixels.shape(0)),
                            int(pixels.shape(1)),
                            stride(2),
                            stride(0),
                            stride(1)};
    py::gil_scoped_release release;
    transform_image(view, window, mean, scale, out);
}

static void transform(const py::array& pixels, int top, int left, int crop_h, int crop_w, bool mirror,
                      const py::object& mean, float scale, FloatArray out) {
    const bool inside = pixels.ndim() == 3 && top >= 0 && left >= 0 && top + crop_h <= pixels.shape(0) &&
                        left + crop_w <= pixels.shape(1);
    if (!inside) throw py::value_error("the crop window must lie inside an image of three axes");
    if (out.size() != pixels.shape(2) * crop_h * crop_w)
        throw py::value_error("out must be (channels, crop_h, crop_w)");
    Mean subtract{Mean::Kind::kNone, nullptr};
    FloatArray values;
    if (!mean.is_none()) {
        values = py::cast<FloatArray>(mean);
        const bool image = values.ndim() == 3;
        const bool fits = image ? values.shape(0) == pixels.shape(2) && values.shape(1) == pixels.shape(0) &&
                                      values.shape(2) == pixels.shape(1)
                                : values.size() == pixels.shape(2);
        if (!fits) throw py::value_error("the mean must be one value for each channel or of the image's size");
        subtract = {image ? Mean::Kind::kImage : Mean::Kind::kChannel, values.data()};
    }
    const CropWindow window{top, left, crop_h, crop_w, mirror};
    if (pixels.dtype().is(py::dtype::of<uint8_t>()))
        transform_pixels<uint8_t>(pixels, window, subtract, scale, out.mutable_data());
    else if (pixels.dtype().is(py::dtype::of<float>()))
        transform_pixels<float>(pixels, window, subtract, scale, out.mutable_data());
    else
        throw py::value_error("pixels must be uint8 or float32");
}

static std::string onednn_version() {
    const auto* version = dnnl_version();
    return std::to_string(version->major) + "." + std::to_string(version->minor) + "." + std::to_string(version->patch);
}

static std::string onednn_isa() {
    switch (dnnl::get_effective_cpu_isa()) {
        case dnnl::cpu_isa::sse41:
            return "SSE4.1";
        case dnnl::cpu_isa::avx:
            return "AVX";
        case dnnl::cpu_isa::avx2:
            return "AVX2";
        case dnnl::cpu_isa::avx512_core:
            return "AVX-512";
        case dnnl::cpu_isa::avx512_core_vnni:
            return "AVX-512 with VNNI";
        case dnnl::cpu_isa::avx512_core_bf16:
            return "AVX-512 with bf16";
        case dnnl::cpu_isa::avx512_core_fp16:
            return "AVX-512 with bf16 and fp16";
        case dnnl::cpu_isa::avx512_core_amx:
            return "AVX-512 with AMX";
        default:
            return "unknown (" + std::to_string(int(dnnl::get_effective_cpu_isa())) + ")";
    }
}

// Whether bf16 is computed natively: without that it is slower than float32.
static bool has_bf16() {
    const auto isa = int(dnnl::get_effective_cpu_isa()), needed = int(dnnl::cpu_isa::avx512_core_bf16);
    return (isa & needed) == needed;
}

}  // namespace engine

PYBIND11_MODULE(_ext, m) {
    using namespace engine;
    m.doc() = "The executor of engine: ops on oneDNN, run without the GIL.";
    bind_tensor(m);
    bind_program(m);
    bind_queue(m);
    bind_updater(m);
    bind_wire(m);
    m.def("transform_image", &transform, "pixels"_a, "top"_a, "left"_a, "crop_h"_a, "crop_w"_a, "mirror"_a,
          "mean"_a.none(true), "scale"_a, "out"_a.noconvert());
    m.def("onednn_version", &onednn_version);
    m.def("has_bf16", has_bf16);
    m.def("onednn_isa", &onednn_isa, "The best instruction set that oneDNN uses on this processor.");
    m.def("flush_denormals", &flush_denormals_here, "In the calling thread only, for good.");
    m.def("threads", &threads, "OpenMP threads of the executor: OMP_NUM_THREADS, or the cores this process may use.");
    m.def("flush_denormals", &flush_denormals, "Denormals count as zero in this thread and its OpenMP team.");
}
