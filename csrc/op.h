// An op is one node of the lowered program: what a layer does to tensors in forward and, if a gradient is wanted, in
// backward. Its constructor fixes layouts, builds primitives and declares which tensors each pass touches; forward()
// and backward() only run.
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

// The attributes of an op, which Python gives it. Methods throw std::invalid_argument, which names the key, if the key
// is missing and there is no default (`otherwise`), or if the value has another type.
class Attributes {
public:
    using Callback = std::function<void(bool backward)>;  // calls a Python function, under the GIL; may throw
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

// Random numbers are counted, not drawn: an op that needs one hashes (seed, step, sample, element).
struct Counter {
    uint64_t seed = 1;
    uint64_t step = 0;          // the iteration; its micro-batches differ in first_sample
    uint64_t first_sample = 0;  // the number of this pass's first sample among those of all ranks
    int64_t batch = 0;          // samples in this pass; 0: as many as a blob has rows

    // Returns the number of row n, of a blob of `rows` rows, among the rows of all ranks. If all samples have the same
    // number of rows, it does not depend on the number of ranks; else it still differs from those on other ranks.
    uint64_t row(int64_t n, int64_t rows) const {
        const int64_t each = batch == 0 ? 1 : rows % batch == 0 ? rows / batch : rows;
        return first_sample * uint64_t(each) + uint64_t(n);
    }
};

// The ranks that train together, for ops whose results depend on all of them. sum() sums an array over the ranks, in
// place; all ranks must call it in the same order.
struct Ranks {
    int64_t count = 1;
    std::function<void(double* values, int64_t size)> sum = [](double*, int64_t) {};
};

struct OpSpec {
    std::string name;       // the layer's name, for errors and timings
    bool backward = true;   // whether gradients may be wanted: in phase TRAIN, or with force_backward
    bool keep_all = false;  // whether Python may change any blob or gradient between ops, so that none may share memory
    Attributes attributes;
    std::vector<TensorPtr> inputs;  // bottoms
    std::vector<TensorPtr> params;
    std::vector<Dims> output_shapes;     // tops
    std::vector<bool> output_gradients;  // which tops have a gradient
    // Tells whether a top has a gradient, or the op is a loss, which begins backward.
    bool leads_to_loss() const;
    const Counter* counter = nullptr;
    const Ranks* ranks = nullptr;

    // These are defined in op.cpp, as are Op's: inline, in the file of each op, they took a third of the compile time.
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

    // Tells whether the op has one result, which is cheap to compute again after forward, while the inputs are what
    // they were. repeat() does that, and changes nothing else.
    virtual bool repeatable() const { return false; }
    virtual void repeat(const dnnl::stream& stream) { forward(stream); }

    // Takes over what the op of the same layer remembers from pass to pass, in a net that this op's net replaces.
    virtual void succeed(const Op&) {}

    // Tells an op that keeps something it has made of constant parameters that these have changed by another way than
    // Tensor::write.
    virtual void parameters_changed() {}

    // Tells whether some bottom or parameter wants a gradient: only then does backward run.
    bool needs_backward() const;
    const OpSpec& spec() const { return spec_; }
    const std::vector<TensorPtr>& outputs() const { return outputs_; }

    // For the memory plan: which buffers each pass touches, and which result may be written over which input.
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

    // The changes of layout inside this op, which the plan could not avoid, and the time that each took in the last
    // run.
    struct Reorder {
        Pass pass;
        Layout from, to;
        int64_t nanoseconds;
    };
    std::vector<Reorder> reorders() const;

protected:
    // A call of a primitive, or of `own`, a kernel of our own. A call of `own` that has args is a reorder.
    struct Call {
        dnnl::primitive primitive;
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
    // Tells whether this op computes the gradient of parameter i. It does not if no gradient arrives (in a test net, in
    // a branch without a loss), though the parameter may have one.
    bool param_gradient(size_t i) const;
    bool output_gradient(size_t i) const { return spec_.output_gradients.at(i); }

    // For losses, which have the attribute loss_weight. make_loss() makes the first top, a scalar. loss_gradient()
    // returns the factor of the op's gradients: loss_weight, plus the top's gradient if a layer reads the top.
    void make_loss();
    double loss_gradient() const;

    // Make top i with memory of its own, or as a view of another tensor's buffer; with share_diff its gradient is a
    // view of that tensor's gradient, too.
    TensorPtr output(size_t i, const Layout& layout);
    TensorPtr output_view(size_t i, const Layout& layout, const TensorPtr& of, bool share_diff);
    // Makes a tensor that lives from this op's forward to its backward (masks, statistics, pooling indices).
    TensorPtr workspace(const std::string& what, const Layout& layout);

    // Declares that a pass reads or writes a tensor. The memory plan may give the memory of a tensor that is not
    // declared to another one by then.
    void touch(Pass pass, const TensorPtr& tensor);
    void touch(Pass pass, std::initializer_list<TensorPtr> tensors);
    // Declares that `output` may be written over `input`, if no later op needs `input`.
    void may_overwrite(Pass pass, const TensorPtr& input, const TensorPtr& output);

    // scratch() returns memory for the call that is being built. fresh_scratch() gives the same bytes out again, for
    // calls that run after those so far.
    void fresh_scratch() { scratch_used_ = 0; }
    dnnl::memory scratch(const Layout& layout);

    // reading() returns a tensor as a primitive's argument in the layout `wanted`. writing() returns where a primitive
    // that writes `wanted` puts its result, and finish() brings that to the tensor. If the layouts differ, they go
    // through scratch, and reorders are added to the calls. described: the tensor's layout, perhaps with other dims.
    dnnl::memory reading(const TensorPtr& tensor, const Layout& wanted, Calls& calls);
    dnnl::memory reading(const TensorPtr& tensor, const Layout& described, const Layout& wanted, Calls& calls);
    static Call reorder(const dnnl::memory& from, const dnnl::memory& to);
    struct Target {
        dnnl::memory memory;  // where the primitive writes
        dnnl::memory final;   // where the result must end up, if that is elsewhere
        bool add = false;     // whether it is added to what is there
    };
    Target writing(const TensorPtr& tensor, const Layout& described, const Layout& wanted, bool add = false);
    Target writing(const TensorPtr& tensor, const Layout& wanted) { return writing(tensor, tensor->layout, wanted); }
    // Returns where a primitive writes the gradient of parameter i: the arena, or scratch if the gradient is
    // accumulated or not wanted.
    Target writing_gradient(size_t i, const Layout& wanted);
    void finish(const Target& target, Calls& calls);
    // Returns parameter i in the layout `wanted`. The first reader of a parameter decides its layout; its type is
    // always float32.
    dnnl::memory reading_param(size_t i, const Layout& wanted, Calls& calls);
    // Returns parameter i as it is, without a reorder, with the dims of `wanted`.
    dnnl::memory described_param(size_t i, const Layout& wanted);
    // Makes parameter i a row-major array, for kernels of our own.
    void plain_param(size_t i);

    OpSpec spec_;
    std::vector<TensorPtr> outputs_;
    Calls forward_calls_, backward_calls_;
    std::string implementation_ = "engine";

private:
    double loss_weight_ = 0;
    std::vector<BufferPtr> touched_[2];
    std::vector<Overwrite> overwrites_;
    std::vector<std::pair<dnnl::memory, size_t>> scratch_;  // (memory, its offset in the program's scratch)
    size_t scratch_used_ = 0, scratch_peak_ = 0;
};

// Registry: `static const RegisterOp<Pooling> registered("Pooling");` in ops/pooling.cpp is all that a new op needs.
using OpMaker = std::unique_ptr<Op> (*)(OpSpec);
void register_op(const char* type, OpMaker make);
// Returns the maker of an op. Throws std::invalid_argument for an unknown type.
OpMaker find_op(const std::string& type);

template <typename T>
struct RegisterOp {
    explicit RegisterOp(const char* type) {
        register_op(type, [](OpSpec spec) -> std::unique_ptr<Op> { return std::make_unique<T>(std::move(spec)); });
    }
};

}  // namespace engine
