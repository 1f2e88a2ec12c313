// The queue of buckets whose gradients are ready, and the rules that update parameters.
#include "bind.h"
#include "ready_queue.h"
#include "update.h"

namespace engine {

// Returns an array's memory. Raises ValueError instead of converting an array, because an update of a copy would be
// lost.
static FloatArena float_arena(const py::array& array, const char* what) {
    if (!FloatArray::check_(array) || array.ndim() != 1 || !array.writeable())
        throw py::value_error(std::string(what) + ": expected a writable float32 array of one dimension");
    return {static_cast<float*>(const_cast<void*>(array.data())), int64_t(array.size())};
}

static std::unique_ptr<Updater> make_updater(const std::string& rule, const py::array& weights,
                                             const py::array& gradients, const std::vector<py::array>& histories,
                                             const std::vector<std::vector<ParameterRange>>& buckets,
                                             std::map<std::string, float> constants, float weight_decay, bool l1,
                                             float local_ratio, bool local_clip, bool local_decays,
                                             bool local_decayed_only) {
    std::vector<FloatArena> arenas;
    for (const py::array& history : histories) arenas.push_back(float_arena(history, "history"));
    return std::make_unique<Updater>(rule, float_arena(weights, "weights"), float_arena(gradients, "gradients"), arenas,
                                     buckets, std::move(constants), WeightDecay{weight_decay, l1},
                                     LocalRates{local_ratio, local_clip, local_decays, local_decayed_only});
}

using EventTuple = std::tuple<int64_t, int, int, int64_t, int64_t, int64_t, int64_t>;

static EventTuple event_tuple(const ReadyQueue::Event& e) {
    return {e.step, e.bucket, e.server, e.ready, e.start, e.reduced, e.end};
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
        .def("wait_all_done", &ReadyQueue::wait_all_done, "timeout"_a = -1.0, ReleaseGil())
        .def("abandon", &ReadyQueue::abandon)
        .def("fail", &ReadyQueue::fail, "message"_a, ReleaseGil())
        .def("close", &ReadyQueue::close, ReleaseGil())
        .def("missing", &ReadyQueue::missing)
        .def_property_readonly("stopped", &ReadyQueue::stopped)
        .def(
            "times", [](const ReadyQueue& queue, int bucket) { return event_tuple(queue.times(bucket)); }, "bucket"_a)
        .def("record", &ReadyQueue::record, "on"_a)
        .def("take_events",
             [](ReadyQueue& queue) {
                 std::vector<EventTuple> events;
                 for (const auto& event : queue.take_events()) events.push_back(event_tuple(event));
                 return events;
             })
        .def("waited_ns", py::overload_cast<>(&ReadyQueue::waited_ns, py::const_))
        .def("waited_ns", py::overload_cast<int>(&ReadyQueue::waited_ns, py::const_), "bucket"_a);
}

static void check_range(int64_t begin, int64_t end) {
    if (begin < 0 || end < begin)
        throw py::value_error("no range: [" + std::to_string(begin) + ", " + std::to_string(end) + ")");
}

static void apply_range(const Updater& updater, int bucket, int64_t begin, int64_t end,
                        const std::optional<py::array>& packed, bool keep) {
    check_range(begin, end);
    const uint16_t* const from = array_pointer<uint16_t>(packed, end - begin, "packed");
    py::gil_scoped_release release;
    updater.apply_range(bucket, begin, end, from, keep);
}

static void apply_rows(const Updater& updater, int bucket, int64_t begin, int64_t end, const py::array& rows, int own,
                       const py::array& packed, bool keep) {
    check_range(begin, end);
    if (rows.ndim() != 2 || end - begin > rows.shape(1) || own < 0 || own >= rows.shape(0))
        throw py::value_error(
            "rows must be (row_count, stride), stride at least the size of the range, own one of them");
    const uint16_t* const from = array_pointer<uint16_t>(rows, rows.size(), "rows");
    uint16_t* const to = array_pointer<uint16_t>(packed, end - begin, "packed");
    const int64_t row_count = rows.shape(0), stride = rows.shape(1);
    py::gil_scoped_release release;
    updater.apply_rows(bucket, begin, end, from, row_count, stride, own, to, keep);
}

static py::typing::Dict<py::str, std::pair<float, float>> constants_of(const UpdateRule& rule) {
    py::typing::Dict<py::str, std::pair<float, float>> constants;
    for (const Constant& constant : rule.constants)
        constants[py::str(constant.field)] = py::make_tuple(constant.least, constant.below);
    return constants;
}

static void bind_rules(py::module_& m) {
    py::class_<UpdateRule>(m, "UpdateRule")
        .def_readonly("name", &UpdateRule::name)
        .def_readonly("type", &UpdateRule::type, "SolverParameter.type that asks for it.")
        .def_readonly("decoupled_weight_decay", &UpdateRule::decoupled_weight_decay)
        .def_readonly("histories", &UpdateRule::histories, "What each of its histories holds, in their order.")
        .def_property_readonly("constants", &constants_of,
                               "Fields of SolverParameter that it reads -> (least, below): their valid range.");
    m.def(
        "update_rules",
        [] {
            py::typing::Dict<py::str, UpdateRule> rules;
            for (const auto& [name, rule] : update_rules()) rules[py::str(name)] = py::cast(rule);
            return rules;
        },
        "Every registered rule by its name.");
}

static void bind_updater(py::module_& m) {
    py::class_<ParameterRange>(m, "ParameterRange")
        .def(py::init([](int64_t begin, int64_t end, float lr_mult, float decay_mult, int parameter, float least,
                         float most, int64_t weights_shift, int64_t history_shift) {
                 return ParameterRange{begin, end,  lr_mult,       decay_mult,   parameter,
                                       least, most, weights_shift, history_shift};
             }),
             "begin"_a, "end"_a, "lr_mult"_a = 1.0f, "decay_mult"_a = 1.0f, "parameter"_a = 0,
             "least"_a = -std::numeric_limits<float>::infinity(), "most"_a = std::numeric_limits<float>::infinity(),
             "weights_shift"_a = 0, "history_shift"_a = 0)
        .def_readonly("begin", &ParameterRange::begin)
        .def_readonly("end", &ParameterRange::end)
        .def_readonly("lr_mult", &ParameterRange::lr_mult)
        .def_readonly("decay_mult", &ParameterRange::decay_mult)
        .def_readonly("parameter", &ParameterRange::parameter);
    py::class_<Updater>(m, "Updater")
        .def(py::init(&make_updater), "rule"_a, "weights"_a, "gradients"_a, "histories"_a, "buckets"_a, "constants"_a,
             py::kw_only(), "weight_decay"_a = 0.0f, "l1"_a = false, "local_ratio"_a = 0.0f, "local_clip"_a = false,
             "local_decays"_a = true, "local_decayed_only"_a = false, py::keep_alive<1, 3>(), py::keep_alive<1, 4>(),
             py::keep_alive<1, 5>())
        .def("set_step", &Updater::set_step, "rate"_a, "scale"_a, "iteration"_a, "momentum_correction"_a = 1.0)
        .def("set_weight_decay", &Updater::set_weight_decay, "factor"_a)
        .def("set_constant", &Updater::set_constant, "field"_a, "value"_a)
        .def("set_local_ratio", &Updater::set_local_ratio, "ratio"_a)
        .def("set_clip_factor", &Updater::set_clip_factor, "factor"_a)
        .def("measure", &Updater::measure, "bucket"_a, "threads"_a = 1, ReleaseGil())
        .def("squares", &Updater::squares)
        .def("set_local_rates", &Updater::set_local_rates, "squares"_a)
        .def_property_readonly("has_local_rates", &Updater::has_local_rates)
        .def("apply", py::overload_cast<int, int>(&Updater::apply, py::const_), "bucket"_a, "threads"_a = 1,
             ReleaseGil())
        .def("apply_range", &apply_range, "bucket"_a, "begin"_a, "end"_a, "packed"_a = py::none(), "keep"_a = true)
        .def("apply_rows", &apply_rows, "bucket"_a, "begin"_a, "end"_a, "rows"_a, "own"_a, "packed"_a, "keep"_a = true)
        .def_property_readonly("buckets", &Updater::buckets)
        .def_property_readonly("histories", &Updater::histories);
}

void bind_updates(py::module_& m) {
    bind_queue(m);
    bind_rules(m);
    bind_updater(m);
}

}  // namespace engine
