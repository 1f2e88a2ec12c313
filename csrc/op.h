// An op is one node of the lowered program: what a layer does to tensors, forward and, where a gradient is wanted,
// backward. Its constructor fixes layouts, builds primitives and says which tensors each pass touches; forward() and
// backward() only run.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "tensor.h"

namespace engine {

// What Python hands over with an op. A missing key without a default throws, naming op and key.
class Attributes {
public:
    using Callback = std::function<void(bool backward)>;  // into the interpreter, which it locks; may throw
    using Value = std::variant<int64_t, double, std::string, std::vector<int64_t>, std::vector<double>, Callback>;
    std::map<std::string, Value> values;

    bool has(const std::string& key) const { return values.count(key) > 0; }
    int64_t integer(const std::string& key) const;
    int64_t integer(const std::string& key, int64_t otherwise) const { return has(key) ? integer(key) : otherwise; }
    bool flag(const std::string& key, bool otherwise = false) const { return integer(key, otherwise) != 0; }
    double real(const std::string& key) const;
    double real(const std::string& key, double otherwise) const { return has(key) ? real(key) : otherwise; }
    std::string text(const std::string& key) const;
    Dims integers(const std::string& key) const;
    std::vector<double> reals(const std::string& key) const;
    const Callback& callback(const std::string& key) const;
};

// Randomness is counted, not drawn: an op that needs it hashes (seed, step, sample, element).
struct Counter {
    uint64_t seed = 1;
    uint64_t step = 0;          // iteration; its micro-batches have other samples
    uint64_t first_sample = 0;  // of this rank's share, within the global batch
    int64_t batch = 0;          // samples in this rank's share; 0: as many as a blob has rows

    // Row n, of so many of a blob, among those of the global batch: where each sample has one row, or several, the same
    // on any number of ranks; else at least no other rank's.
    uint64_t row(int64_t n, int64_t rows) const {
        const int64_t each = batch == 0 ? 1 : rows % batch == 0 ? rows / batch : rows;
        return first_sample * uint64_t(each) + uint64_t(n);
    }
};

// The ranks that train together, for ops whose results depend on all of them. sum() adds up an array over the ranks, in
// place; all ranks call it in the same order.
struct Ranks {
    int64_t count = 1;
    std::function<void(double* values, int64_t size)> sum = [](double*, int64_t) {};
};

struct OpSpec {
    std::string name;       // the layer's, for errors and timings
    bool backward = true;   // gradients may be asked for: phase TRAIN, or force_backward
    bool keep_all = false;  // Python may change a blob, or a gradient, between ops, which leaves the others alone
    Attributes attributes;
    std::vector<TensorPtr> inputs;  // bottoms
    std::vector<TensorPtr> params;
    std::vector<Dims> output_shapes;     // tops
    std::vector<bool> output_gradients;  // which tops carry a diff
    // Whether backward begins or passes here: a loss needs nobody to send it a gradient.
    bool leads_to_loss() const;
    const Counter* counter = nullptr;
    const Ranks* ranks = nullptr;

    // Compiled once, in op.cpp, as are Op's: in the file of each op they took a third of all compiling.
    OpSpec();
    OpSpec(const OpSpec&);
    OpSpec(OpSpec&&) noexcept;
    ~OpSpec();
};

enum class Pass { forward, backward };

class Op {
public:
    explicit Op(OpSpec spec);
    virtual ~Op();
    Op(const Op&) = delete;

    virtual void forward(const dnnl::stream& stream) { run(forward_calls_, stream); }
    virtual void backward(const dnnl::stream& stream) { run(backward_calls_, stream); }

    // Ops with one result that is cheap to compute again, from inputs that are still what they were, between the two
    // passes: repeat() does it and changes nothing else.
    virtual bool repeatable() const { return false; }
    virtual void repeat(const dnnl::stream& stream) { forward(stream); }

    // For ops that remember something from pass to pass: takes over what an op of the same layer does, of a net that
    // this one's replaces.
    virtual void succeed(const Op&) {}

    // For ops that keep what they made of constant parameters: those have changed, other than by Tensor::write.
    virtual void parameters_changed() {}

    // True when some bottom or parameter wants a gradient: only then does backward run.
    bool needs_backward() const;
    const OpSpec& spec() const { return spec_; }
    const std::vector<TensorPtr>& outputs() const { return outputs_; }

    // For the memory plan: what each pass touches, and which result may be written over which input.
    struct Overwrite {
        Pass pass;
        BufferPtr input, output;
    };
    const std::vector<BufferPtr>& touched(Pass pass) const { return touched_[int(pass)]; }
    const std::vector<Overwrite>& overwrites() const { return overwrites_; }

    // Memory that only one call of one op needs at a time; all ops of a program share the same bytes.
    size_t scratch_bytes() const { return scratch_peak_; }
    void place_scratch(char* base) const;

    virtual std::string implementation() const { return implementation_; }

    // Changes of layout that no other op shares: what the plan could not avoid, and what the last run paid for it.
    struct Reorder {
        Pass pass;
        Layout from, to;
        int64_t nanoseconds;
    };
    std::vector<Reorder> reorders() const;

protected:
    struct Call {
        dnnl::primitive primitive;  // or `own`, a kernel of our own; if it has args, a reorder
        std::unordered_map<int, dnnl::memory> args;
        std::function<void()> own = {};
        mutable std::vector<dnnl_exec_arg_t> list =
            {};                           // args as oneDNN's C interface takes them, from the first run on
        mutable int64_t nanoseconds = 0;  // of the last run
    };
    using Calls = std::vector<Call>;
    static void add_own(Calls& calls, std::function<void()> own);
    static void run(const Calls& calls, const dnnl::stream& stream);
    static void execute(const Call& call, const dnnl::stream& stream);

    const TensorPtr& input(size_t i) const { return spec_.inputs.at(i); }
    const TensorPtr& param(size_t i) const { return spec_.params.at(i); }
    bool input_gradient(size_t i) const { return spec_.backward && spec_.inputs.at(i)->diff; }
    // Not where no gradient arrives (a test net, a branch without a loss), though the solver may know the parameter.
    bool param_gradient(size_t i) const;
    bool output_gradient(size_t i) const { return spec_.output_gradients.at(i); }

    // Losses, which say so by the attribute loss_weight: the first top, a scalar, and what their gradients are
    // multiplied by, its weight and what a layer that reads it has sent.
    void make_loss();
    double loss_gradient() const;

    // Makes top i with its own memory, or as a view of an existing buffer (the diffs then share one too).
    TensorPtr output(size_t i, const Layout& layout);
    TensorPtr output_view(size_t i, const Layout& layout, const TensorPtr& of, bool share_diff);
    // Lives from this op's forward to its backward (masks, statistics, pooling indices).
    TensorPtr workspace(const std::string& what, const Layout& layout);

    // Declares what a pass reads or writes. A tensor that is not declared may be overwritten by the memory plan.
    void touch(Pass pass, const TensorPtr& tensor);
    void touch(Pass pass, std::initializer_list<TensorPtr> tensors);
    // The plan may place `output` in the memory of `input` when nobody needs `input` any more.
    void may_overwrite(Pass pass, const TensorPtr& input, const TensorPtr& output);

    // Scratch of the call being built; fresh_scratch() starts over, for a call that runs when the former are finished.
    void fresh_scratch() { scratch_used_ = 0; }
    dnnl::memory scratch(const Layout& layout);

    // oneDNN arguments in the layout that a primitive wants; reorders (through scratch) are added only where layouts
    // differ.
    dnnl::memory reading(const TensorPtr& tensor, const Layout& wanted, Calls& calls);
    dnnl::memory reading(const TensorPtr& tensor, const Layout& described, const Layout& wanted, Calls& calls);
    static Call reorder(const dnnl::memory& from, const dnnl::memory& to);
    struct Target {
        dnnl::memory memory;  // what the primitive writes
        dnnl::memory final;   // where it must end up, if elsewhere
        bool add = false;
    };
    Target writing(const TensorPtr& tensor, const Layout& described, const Layout& wanted, bool add = false);
    Target writing(const TensorPtr& tensor, const Layout& wanted) { return writing(tensor, tensor->layout, wanted); }
    // The gradient of parameter i: straight into the arena, or through scratch when it is accumulated or not wanted.
    Target writing_gradient(size_t i, const Layout& wanted);
    void finish(const Target& target, Calls& calls);
    // Parameter i for a primitive that wants it in `wanted`. The first reader of a parameter decides its layout; its
    // type is always float32.
    dnnl::memory reading_param(size_t i, const Layout& wanted, Calls& calls);
    // The same as it is, without a reorder: described with the dims of `wanted`.
    dnnl::memory described_param(size_t i, const Layout& wanted);
    // For kernels of our own that keep a parameter as a row-major array.
    void plain_param(size_t i);

    OpSpec spec_;
    std::vector<TensorPtr> outputs_;
    Calls forward_calls_, backward_calls_;
    std::string implementation_ = "engine";

private:
    double loss_weight_ = 0;
    std::vector<BufferPtr> touched_[2];
    std::vector<Overwrite> overwrites_;
    std::vector<std::pair<dnnl::memory, size_t>> scratch_;  // and its offset
    size_t scratch_used_ = 0, scratch_peak_ = 0;
};

// Registry: `static const RegisterOp<Pooling> registered("Pooling");` in ops/pooling.cpp is all that a new op needs.
using OpMaker = std::unique_ptr<Op> (*)(OpSpec);
void register_op(const char* type, OpMaker make);
OpMaker find_op(const std::string& type);  // throws where there is none

template <typename T>
struct RegisterOp {
    explicit RegisterOp(const char* type) {
        register_op(type, [](OpSpec spec) -> std::unique_ptr<Op> { return std::make_unique<T>(std::move(spec)); });
    }
};

}  // namespace engine
