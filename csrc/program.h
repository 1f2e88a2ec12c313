// A lowered net: ops in forward order, their tensors, one memory plan, and the executor that runs them without the GIL.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "arena.h"
#include "op.h"
#include "ready_queue.h"

namespace engine {

class Program {
public:
    explicit Program(bool backward, bool keep_all = false) : backward_(backward), keep_all_(keep_all), stream_(cpu()) {}

    // Building, in forward order.
    // Makes a tensor that is fed from outside: row-major float32.
    TensorPtr input(const std::string& name, const Dims& shape, bool wants_gradient);
    // Makes a blob that no op of this program computes, in the layout of another program's: to run an op by itself.
    TensorPtr given(const TensorPtr& like, bool wants_gradient);
    TensorPtr parameter(const std::string& name, const Dims& shape, bool wants_gradient);
    // Takes a parameter of another program, too, so that zero_gradients() knows it.
    void share(const TensorPtr& parameter) { parameters_.push_back(parameter); }
    // Adds an op and returns its outputs. Throws std::invalid_argument for an unknown type, or what the op throws.
    std::vector<TensorPtr> add(const std::string& type, OpSpec spec);

    // The memory plan. Of n ops, step i is the forward of op i, step 2n-1-i its backward. Buffers have ids, from 0.
    struct Touches {
        int64_t bytes;
        std::vector<int> steps;  // the steps that touch the buffer, in order
    };
    std::vector<Touches> touches();  // of every activation buffer, by buffer id
    struct Repeatable {
        int op;
        std::vector<int> inputs;  // buffer ids
        int output;               // a buffer id
    };
    std::vector<Repeatable> repeatable();  // the ops whose forward can run again in backward
    // Makes backward run an op's forward again just before a step.
    void repeat(int op, int step) { repeats_[step].push_back(op); }
    struct Overwrite {
        int step, input, output;  // input, output: buffer ids
    };
    std::vector<Overwrite> overwrites();  // the results that may be written over an input of their step
    // Makes two buffers one: the op of `output` writes over its `input`.
    void join(int output, int input);
    // Gives every activation buffer its offset in one arena of `bytes`, and the ops their scratch.
    void place(const std::vector<int64_t>& offsets, int64_t bytes);
    // Gives a tensor that Python reads or writes between runs memory of its own.
    void own(const TensorPtr& tensor);

    // Running.
    void set_counter(const Counter& counter) { counter_ = counter; }
    void set_ranks(Ranks ranks) { ranks_ = std::move(ranks); }
    // Run the ops [begin, end), or fewer if the program has fewer; backward runs them last to first.
    void forward(size_t begin = 0, size_t end = all_ops);
    void backward(size_t begin = 0, size_t end = all_ops);
    static constexpr size_t all_ops = size_t(-1);
    // Takes over what the ops of `before` remember: the same net in other shapes, which this one replaces.
    void succeed(const Program& before);
    // Tells ops with constant parameters that these have changed by another way than Tensor::write.
    void parameters_changed();
    void zero_gradients();  // of the parameters to whose gradients ops add
    // Runs forward again, op by op. Returns the name of the first op whose output is not finite; "" if all are.
    std::string first_nonfinite();

    // The gates of an op: the buckets that its forward waits for before it reads its parameters, and those that are
    // ready after its backward, which is the last to write their gradients.
    struct Gate {
        std::vector<int> waits, readies;  // buckets
    };
    void set_queue(std::shared_ptr<ReadyQueue> queue, std::vector<Gate> gates);
    void mark_ready(bool on) { mark_ready_ = on; }  // off for all micro-batches but the last

    // The board shows where the executor is to those who watch from outside, perhaps from another process. The order of
    // its numbers and the values of Place are those of engine/watchdog/board.py.
    enum Board { beat_field, place_field, op_field, bucket_field, board_size };
    enum Place { at_forward = 2, at_backward = 3 };
    void set_board(int64_t* numbers) { board_ = numbers; }

    size_t size() const { return ops_.size(); }
    const Op& op(size_t i) const { return *ops_.at(i); }
    int64_t activation_bytes() const { return arena_ ? int64_t(arena_->bytes()) : 0; }
    int64_t scratch_bytes() const;
    // Returns the start and the end of every step of the last run, in nanoseconds of CLOCK_MONOTONIC, steps numbered as
    // above.
    const std::vector<int64_t>& spans() const { return spans_; }
    int64_t repeat_ns() const { return repeat_ns_; }  // nanoseconds that repeats took in the last backward pass

private:
    int buffer_id(const BufferPtr& buffer);
    void repeat_before(int step);
    void timed(size_t step, Op& op, Pass pass);
    void mark(Board field, int64_t value) { __atomic_store_n(board_ + field, value, __ATOMIC_RELAXED); }
    void mark_op(Place place, size_t op);
    void wait_for(int bucket);

    bool backward_, keep_all_;
    dnnl::stream stream_;
    Counter counter_;
    Ranks ranks_;
    std::vector<std::unique_ptr<Op>> ops_;
    std::vector<TensorPtr> parameters_;
    std::vector<BufferPtr> buffers_;  // activations, numbered in order of first touch
    std::unordered_map<const Buffer*, int> ids_;
    std::shared_ptr<Arena> arena_;
    std::unique_ptr<Arena> scratch_;
    std::shared_ptr<ReadyQueue> queue_;
    std::vector<Gate> gates_;
    bool mark_ready_ = true;
    std::unordered_map<int, std::vector<int>> repeats_;  // step -> the ops that run again before it
    std::vector<int64_t> spans_;
    int64_t repeat_ns_ = 0;
    int64_t unseen_[board_size] = {};  // a board that nobody sees, while no other is set
    int64_t* board_ = unseen_;
};

}  // namespace engine
