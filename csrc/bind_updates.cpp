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
    py::class_<ReadyQueue, std::shared_ptr<ReadyQueue>>(
        m, "ReadyQueue",
        "The queue through which the executor hands buckets to the communication servers, and by which it waits for "
        "their updates. A bucket is in flight from ready() to done(). Timeouts are in seconds; a negative one is no "
        "limit.")
        .def(py::init<int>(), "buckets"_a)
        .def("__len__", &ReadyQueue::size)
        .def("begin_step", &ReadyQueue::begin_step, "step"_a,
             "Opens a step, in which every bucket is to be marked ready once. Raises RuntimeError if buckets of the "
             "step before are still in flight, or if the step has begun already.")
        .def(
            "ready", &ReadyQueue::ready, "bucket"_a, ReleaseGil(),
            "Marks that the gradients of a bucket are complete. Raises RuntimeError outside a step, or if it is marked "
            "twice in one.")
        .def("wait_ready", &ReadyQueue::wait_ready, "bucket"_a, "timeout"_a = -1.0, ReleaseGil(),
             "Waits until a bucket is ready. Returns False when the time is over or the queue has stopped.")
        .def("wait_first", &ReadyQueue::wait_first, "order"_a, ReleaseGil(),
             "Waits until some bucket of `order` is ready. Returns the first of these in that order; -1 when the queue "
             "has stopped.")
        .def("reduced", &ReadyQueue::reduced, "bucket"_a, ReleaseGil(),
             "Notes the time when a bucket is reduced, for events.")
        .def("done", &ReadyQueue::done, "bucket"_a, "server"_a = 0, ReleaseGil(),
             "Marks that the update of a bucket is in the weights. server: the one that did it, for events.")
        .def("wait_done", &ReadyQueue::wait_done, "bucket"_a, ReleaseGil(),
             "Returns when the update of a bucket is in the weights, at once if it is not in flight. Raises CommError "
             "if a server has failed, or the queue is closed meanwhile.")
        .def("wait_all_done", &ReadyQueue::wait_all_done, "timeout"_a = -1.0, ReleaseGil(),
             "Waits for all buckets. Returns False when the time is over. Raises CommError as wait_done() does.")
        .def("abandon", &ReadyQueue::abandon,
             "Forgets the open step and those before, which may then begin again. No bucket may be in flight, or no "
             "server at work.")
        .def("fail", &ReadyQueue::fail, "message"_a, ReleaseGil(),
             "Parks an error, the first if there are several, and stops the queue: all waits end.")
        .def("close", &ReadyQueue::close, ReleaseGil(), "Stops the queue: all waits end.")
        .def("missing", &ReadyQueue::missing, "Returns the buckets that backward has not marked in the open step yet.")
        .def_property_readonly("stopped", &ReadyQueue::stopped)
        .def(
            "times", [](const ReadyQueue& queue, int bucket) { return event_tuple(queue.times(bucket)); }, "bucket"_a,
            "Returns the event of a bucket in the latest step: (step, bucket, server, ready, start, reduced, end), "
            "times in nanoseconds of CLOCK_MONOTONIC.")
        .def("record", &ReadyQueue::record, "on"_a,
             "Begins or stops recording: then done() keeps every event until take_events() returns it.")
        .def(
            "take_events",
            [](ReadyQueue& queue) {
                std::vector<EventTuple> events;
                for (const auto& event : queue.take_events()) events.push_back(event_tuple(event));
                return events;
            },
            "Returns the recorded events, as times() does, and forgets them.")
        .def("waited_ns", py::overload_cast<>(&ReadyQueue::waited_ns, py::const_),
             "Returns the exposed communication: the nanoseconds that waits for done buckets were blocked so far.")
        .def("waited_ns", py::overload_cast<int>(&ReadyQueue::waited_ns, py::const_), "bucket"_a,
             "Returns the nanoseconds that waits for one bucket were blocked so far.");
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
    py::class_<UpdateRule>(m, "UpdateRule", "What an update rule declares.")
        .def_readonly("name", &UpdateRule::name)
        .def_readonly("type", &UpdateRule::type,
                      "The SolverParameter.type that asks for it, together with decoupled_weight_decay.")
        .def_readonly("decoupled_weight_decay", &UpdateRule::decoupled_weight_decay)
        .def_readonly("histories", &UpdateRule::histories,
                      "What each of its histories holds, in the order of Caffe's SolverState.history.")
        .def_property_readonly("constants", &constants_of,
                               "The fields of SolverParameter that it reads, and their range: name -> (least, below).");
    m.def(
        "update_rules",
        [] {
            py::typing::Dict<py::str, UpdateRule> rules;
            for (const auto& [name, rule] : update_rules()) rules[py::str(name)] = py::cast(rule);
            return rules;
        },
        "Returns the registered rules by name.");
}

static void bind_updater(py::module_& m) {
    py::class_<ParameterRange>(
        m, "ParameterRange",
        "Floats [begin, end) of the gradients that belong to one parameter: the whole of it, or some of a large one.")
        .def(py::init([](int64_t begin, int64_t end, float lr_mult, float decay_mult, int parameter, float least,
                         float most, int64_t weights_shift, int64_t history_shift) {
                 return ParameterRange{begin, end,  lr_mult,       decay_mult,   parameter,
                                       least, most, weights_shift, history_shift};
             }),
             "begin"_a, "end"_a, "lr_mult"_a = 1.0f, "decay_mult"_a = 1.0f, "parameter"_a = 0,
             "least"_a = -std::numeric_limits<float>::infinity(), "most"_a = std::numeric_limits<float>::infinity(),
             "weights_shift"_a = 0, "history_shift"_a = 0,
             "Args:\n"
             "    parameter: its number, from 0.\n"
             "    least, most: an update clamps the weights to this range.\n"
             "    weights_shift, history_shift: what to add to an index of the gradients for that of the weights, and "
             "of the histories.")
        .def_readonly("begin", &ParameterRange::begin)
        .def_readonly("end", &ParameterRange::end)
        .def_readonly("lr_mult", &ParameterRange::lr_mult)
        .def_readonly("decay_mult", &ParameterRange::decay_mult)
        .def_readonly("parameter", &ParameterRange::parameter);
    py::class_<Updater>(
        m, "Updater",
        "Updates the parameters, a bucket at a time, in one pass over flat arenas. The setters hold for "
        "the steps that follow.")
        .def(py::init(&make_updater), "rule"_a, "weights"_a, "gradients"_a, "histories"_a, "buckets"_a, "constants"_a,
             py::kw_only(), "weight_decay"_a = 0.0f, "l1"_a = false, "local_ratio"_a = 0.0f, "local_clip"_a = false,
             "local_decays"_a = true, "local_decayed_only"_a = false, py::keep_alive<1, 3>(), py::keep_alive<1, 4>(),
             py::keep_alive<1, 5>(),
             "Raises ValueError for an unknown rule, for histories or constants that are not the rule's, for an array "
             "that is not float32 and writable, and for a range outside of an array.\n\n"
             "Args:\n"
             "    weights, gradients, histories: arrays with the same offsets, but for the shifts of a range.\n"
             "    buckets: the ranges of each bucket.\n"
             "    constants: a value for each constant that the rule declares.\n"
             "    l1: whether the weight decay is L1's; else it is L2's.\n"
             "    local_ratio: that of layer-wise rates (You et al.); 0: there are none.\n"
             "    local_clip: whether a rate is the smaller of the layer's and the global one, as in LARC, instead of "
             "their product.\n"
             "    local_decays: whether the weight decay counts in layer-wise rates.\n"
             "    local_decayed_only: whether parameters without weight decay keep their lr_mult.")
        .def(
            "set_step", &Updater::set_step, "rate"_a, "scale"_a, "iteration"_a, "momentum_correction"_a = 1.0,
            "Sets the numbers of the next step.\n\n"
            "Args:\n"
            "    scale: 1 / (ranks * iter_size), the one place that averages.\n"
            "    iteration: updates finished before this one.\n"
            "    momentum_correction: the factor of a history that is a momentum: the rate divided by that of the step "
            "before, or 1.")
        .def("set_weight_decay", &Updater::set_weight_decay, "factor"_a)
        .def("set_constant", &Updater::set_constant, "field"_a, "value"_a,
             "Sets a constant that the rule declares. Raises ValueError for others.")
        .def("set_local_ratio", &Updater::set_local_ratio, "ratio"_a)
        .def(
            "set_clip_factor", &Updater::set_clip_factor, "factor"_a,
            "Sets the factor of the gradients in the next step: clip / norm if their norm is larger than clip, else 1. "
            "set_step() sets it to 1.")
        .def("measure", &Updater::measure, "bucket"_a, "threads"_a = 1, ReleaseGil(),
             "Returns the sum of squares of a bucket's gradients before they are scaled: the same bits for any number "
             "of threads. Keeps what squares() needs.")
        .def("squares", &Updater::squares,
             "Returns the sums of squares of each parameter's gradients, then of each parameter's weights, when every "
             "bucket is measured; [] if layer-wise rates are off.")
        .def(
            "set_local_rates", &Updater::set_local_rates, "squares"_a,
            "Sets the layer-wise rates, after set_clip_factor() and before apply(). squares: those of squares(), "
            "summed over the ranks if each has shares of the parameters. Raises ValueError if there are more or fewer.")
        .def_property_readonly("has_local_rates", &Updater::has_local_rates)
        .def("apply", py::overload_cast<int, int>(&Updater::apply, py::const_), "bucket"_a, "threads"_a = 1,
             ReleaseGil(),
             "Normalises, clips, decays and updates a bucket in one pass. Servers may call this for several buckets at "
             "the same time. The result does not depend on `threads`, nor on the width of the processor's vectors.")
        .def("apply_range", &apply_range, "bucket"_a, "begin"_a, "end"_a, "packed"_a = py::none(), "keep"_a = true,
             "Updates the floats [begin, end) of a bucket in the calling thread.\n\n"
             "Args:\n"
             "    packed: their gradients as bfloat16, held as uint16; None: the gradients are in the arena.\n"
             "    keep: whether packed gradients are also unpacked into the arena.")
        .def("apply_rows", &apply_rows, "bucket"_a, "begin"_a, "end"_a, "rows"_a, "own"_a, "packed"_a, "keep"_a = true,
             "Sums gradients that came from the ranks, and updates the floats [begin, end) of a bucket by them in the "
             "calling thread.\n\n"
             "Args:\n"
             "    rows: (row_count, stride) bfloat16, held as uint16; each row begins with those of [begin, end).\n"
             "    own: the row that is in the arena instead.\n"
             "    packed: receives the new weights as bfloat16, and 0 in gaps between parameters.\n"
             "    keep: whether the arena receives the sums.")
        .def_property_readonly("buckets", &Updater::buckets, "The number of buckets.")
        .def_property_readonly("histories", &Updater::histories, "The number of histories.");
}

void bind_updates(py::module_& m) {
    bind_queue(m);
    bind_rules(m);
    bind_updater(m);
}

}  // namespace engine
