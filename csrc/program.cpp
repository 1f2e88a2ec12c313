#include "program.h"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "crowd.h"
#include "threads.h"

namespace engine {

static int64_t now() {
    timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return int64_t(at.tv_sec) * 1000000000 + at.tv_nsec;
}

TensorPtr Program::input(const std::string& name, const Dims& shape, bool wants_gradient) {
    auto tensor = std::make_shared<Tensor>(name, shape, Home::external);
    if (wants_gradient) tensor->diff = std::make_shared<Tensor>(name, shape, Home::activation);
    tensor->decide(plain_layout(shape));
    return tensor;
}

TensorPtr Program::given(const TensorPtr& like, bool wants_gradient) {
    auto tensor = std::make_shared<Tensor>(like->name, like->shape, Home::activation);
    if (wants_gradient) tensor->diff = std::make_shared<Tensor>(like->name, like->shape, Home::activation);
    tensor->decide(like->layout);
    return tensor;
}

TensorPtr Program::parameter(const std::string& name, const Dims& shape, bool wants_gradient) {
    auto tensor = std::make_shared<Tensor>(name, shape, Home::parameter);
    if (wants_gradient) tensor->diff = std::make_shared<Tensor>(name, shape, Home::gradient);
    parameters_.push_back(tensor);
    return tensor;
}

// Throws if an input waits for a gradient that this op, to which no loss leads, will not write: its Split would add
// memory that nobody has written.
static void check_gradients(const OpSpec& spec) {
    if (!spec.backward || spec.leads_to_loss()) return;
    for (const auto& input : spec.inputs)
        if (input->diff)
            throw std::logic_error("a defect of engine: no gradient arrives, and '" + input->name + "' waits for one");
}

std::vector<TensorPtr> Program::add(const std::string& type, OpSpec spec) {
    const OpMaker make = find_op(type);
    spec.backward = backward_;
    spec.keep_all = keep_all_;
    spec.counter = &counter_;
    spec.ranks = &ranks_;
    for (const Dims& shape : spec.output_shapes)
        Tensor(spec.name, shape, Home::activation);  // throws for a shape that no tensor can have, before the op does
    const KeepDenormals kept;  // oneDNN must tell a slope that is a denormal from 0: see ops/common/relu_slope.h
    try {
        ops_.push_back(make(std::move(spec)));
    } catch (const dnnl::error& error) {
        throw std::runtime_error(std::string("oneDNN: ") + error.what());
    }
    check_gradients(ops_.back()->spec());
    return ops_.back()->outputs();
}

int Program::buffer_id(const BufferPtr& buffer) {
    if (buffer->home() != Home::activation) return -1;
    const auto [found, fresh] = ids_.try_emplace(buffer->root(), int(buffers_.size()));
    if (fresh) buffers_.push_back(buffer);
    return found->second;
}

std::vector<Program::Touches> Program::touches() {
    std::vector<Touches> result;
    const int n = int(ops_.size());
    const auto visit = [&](int step, const BufferPtr& buffer) {
        const int id = buffer_id(buffer);
        if (id < 0) return;
        if (id == int(result.size())) result.push_back({int64_t(buffer->bytes()), {}});
        auto& steps = result[id].steps;
        if (steps.empty() || steps.back() != step) steps.push_back(step);
    };
    buffers_.clear();
    ids_.clear();
    for (int i = 0; i < n; i++)
        for (const auto& buffer : ops_[i]->touched(Pass::forward)) visit(i, buffer);
    for (int i = n; backward_ && i-- > 0;)
        if (ops_[i]->needs_backward())
            for (const auto& buffer : ops_[i]->touched(Pass::backward)) visit(2 * n - 1 - i, buffer);
    return result;
}

std::vector<Program::Repeatable> Program::repeatable() {
    std::vector<Repeatable> result;
    for (size_t i = 0; i < ops_.size(); i++) {
        if (!ops_[i]->repeatable()) continue;
        Repeatable each{int(i), {}, buffer_id(ops_[i]->outputs()[0]->buffer)};
        for (const auto& input : ops_[i]->spec().inputs)
            if (const int id = buffer_id(input->buffer); id >= 0) each.inputs.push_back(id);
        if (each.output >= 0) result.push_back(each);
    }
    return result;
}

std::vector<Program::Overwrite> Program::overwrites() {
    std::vector<Overwrite> result;
    const int n = int(ops_.size());
    for (int i = 0; i < n; i++) {
        for (const auto& pair : ops_[i]->overwrites()) {
            if (pair.pass == Pass::backward && !backward_) continue;
            const int from = buffer_id(pair.input), to = buffer_id(pair.output);
            if (from >= 0 && to >= 0) result.push_back({pair.pass == Pass::forward ? i : 2 * n - 1 - i, from, to});
        }
    }
    return result;
}

void Program::succeed(const Program& before) {
    for (const auto& op : ops_)
        for (const auto& earlier : before.ops_)
            if (op->spec().name == earlier->spec().name) op->succeed(*earlier);
}

void Program::join(int output, int input) { buffers_.at(input)->join(buffers_.at(output)); }

void Program::place(const std::vector<int64_t>& offsets, int64_t bytes) {
    if (offsets.size() != buffers_.size()) throw std::invalid_argument("the plan must place every activation buffer");
    arena_ = std::make_shared<Arena>(bytes);
    for (size_t i = 0; i < offsets.size(); i++) buffers_[i]->place(arena_->data() + offsets[i], arena_);
    scratch_ = std::make_unique<Arena>(scratch_bytes());
    for (const auto& op : ops_) op->place_scratch(scratch_->data());
    spans_.assign(4 * ops_.size(), 0);
}

void Program::own(const TensorPtr& tensor) {
    const auto give = [&](const TensorPtr& each) {
        if (!each || !each->decided() || each->buffer->home() != Home::activation) return;
        each->buffer->set_home(Home::owned);
        const auto arena = std::make_shared<Arena>(each->buffer->bytes());
        each->buffer->place(arena->data(), arena);
    };
    give(tensor);
    give(tensor->diff);
}

int64_t Program::scratch_bytes() const {
    size_t most = 0;
    for (const auto& op : ops_) most = std::max(most, op->scratch_bytes());
    return int64_t(most);
}

void Program::timed(size_t step, Op& op, Pass pass) {
    spans_[2 * step] = now();
    pass == Pass::forward ? op.forward(stream_) : op.backward(stream_);
    spans_[2 * step + 1] = now();
}

void Program::mark_op(Place at, size_t op) {
    mark(place_field, at);
    mark(op_field, int64_t(op));
    mark(beat_field, board_[beat_field] + 1);
}

void Program::wait_for(int number) {
    mark(bucket_field, number);
    queue_->wait_done(number);
    mark(bucket_field, -1);
}

void Program::forward(size_t begin, size_t end) {
    prepare_threads();
    make_way_for_others();
    for (size_t i = begin; i < std::min(end, ops_.size()); i++) {
        mark_op(at_forward, i);
        if (queue_)
            for (int each : gates_[i].waits) wait_for(each);
        timed(i, *ops_[i], Pass::forward);
    }
}

void Program::repeat_before(int step) {
    const auto found = repeats_.find(step);
    if (found == repeats_.end()) return;
    const int64_t begin = now();
    for (const int op : found->second) ops_[op]->repeat(stream_);
    repeat_ns_ += now() - begin;
}

void Program::backward(size_t begin, size_t end) {
    prepare_threads();
    make_way_for_others();
    repeat_ns_ = 0;
    for (size_t i = std::min(end, ops_.size()); i-- > begin;) {
        const size_t step = 2 * ops_.size() - 1 - i;
        mark_op(at_backward, i);
        if (!repeats_.empty()) repeat_before(int(step));
        if (ops_[i]->needs_backward()) timed(step, *ops_[i], Pass::backward);
        if (queue_ && mark_ready_)
            for (int bucket : gates_[i].readies) queue_->ready(bucket);
    }
}

void Program::parameters_changed() {
    for (const auto& op : ops_) op->parameters_changed();
}

void Program::zero_gradients() {
    for (const auto& parameter : parameters_) {
        const auto& diff = parameter->diff;
        if (diff && diff->accumulate && diff->decided()) std::memset(diff->data(), 0, diff->buffer->bytes());
    }
}

std::string Program::first_nonfinite() {
    struct Alone {  // for the time of this function sums are over this rank alone: the others do not come here
        explicit Alone(Ranks& ranks) : all(ranks) { std::swap(all, others); }
        ~Alone() { std::swap(all, others); }
        Ranks &all, others;
    } const alone(ranks_);
    for (const auto& op : ops_) {
        op->forward(stream_);
        for (const auto& tensor : op->outputs()) {
            if (!tensor) continue;
            std::vector<float> values(tensor->count());
            tensor->read(values.data());
            if (!std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); }))
                return op->spec().name;
        }
    }
    return "";
}

void Program::set_queue(std::shared_ptr<ReadyQueue> queue, std::vector<Gate> gates) {
    if (queue && gates.size() != ops_.size()) throw std::invalid_argument("one gate for every op");
    queue_ = std::move(queue);
    gates_ = std::move(gates);
}

}  // namespace engine
