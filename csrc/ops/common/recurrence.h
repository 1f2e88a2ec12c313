// A sequence in which every step sees its own input and, through matrices, the hidden state of the step before: what
// LSTM, GRU and RNN have in common.
// inputs: drive (T N, G), what the units get from x; cont (T, N), by which states are multiplied before a step (0 where
// a sequence begins); with the attribute `static`, a further drive of all steps (N, G); then, if states are exposed,
// the first ones, each (1, N, H). attributes: static, constant (parameters change rarely), clip (what gradients of
// products are cut off at, 0 for nowhere). params: matrices (outputs, H). outputs: hidden states (T, N, H), or (T N,
// H); if states are exposed, the last ones. States that are not exposed go on from one batch to the next; gradients do
// not.
//
// Products of matrices are computed in the precision of the drive, and so are their gradients; all else is float32.
// (oneDNN has whole recurrent layers, too. These cannot begin a sequence in the middle of a batch. On an AMD EPYC they
// trained an LSTM of 256 units in the same time as this, and one of 512 in a tenth less in float32, but in a third more
// in bf16.)
#pragma once

#include "ops/common/onednn_util.h"

namespace engine {

class Recurrence : public Op {
public:
    void forward(const dnnl::stream& stream) override;
    void backward(const dnnl::stream& stream) override;
    void parameters_changed() override { packed_at_ = never; }
    void succeed(const Op& op) override;

protected:
    // What every step multiplies in one go: the hidden state before it, or else what the op makes of that, by matrices
    // that lie one above the other, given by their numbers among the params.
    struct Product {
        std::vector<size_t> matrices;
        bool of_hidden = true;
    };

    // `states` is how many kinds of state there are; the hidden one is the first. Products come in their order within a
    // step. A single one has an output for each number of the drive.
    Recurrence(OpSpec spec, size_t states, std::vector<Product> products);

    // Step t of sequence n, forward, when product k has its `result` (outputs of k): after the last product, to
    // after().
    virtual void advance(size_t k, int64_t t, int64_t n, float* result) = 0;
    // Backward, products in reverse: the gradient of the result of product k. What arrives at after() is in
    // gradient(state, n); in its place comes, until the first product is done, what goes on to before(), but for what
    // goes through products of the hidden state, which is added.
    virtual void retreat(size_t k, int64_t t, int64_t n, float* result_gradient) = 0;

    const float* before(size_t state, int64_t t, int64_t n) const {
        return t > 0 ? states_[state]->data() + ((t - 1) * batch_ + n) * hidden_ : first_[state].data() + n * hidden_;
    }
    float* after(size_t state, int64_t t, int64_t n) const {
        return states_[state]->data() + (t * batch_ + n) * hidden_;
    }
    float* gradient(size_t state, int64_t n) const { return address<float>(gradients_[state]) + n * hidden_; }
    float cont(int64_t t, int64_t n) const { return input(1)->data()[t * batch_ + n]; }

    // Adds what the units get from x and the static input, from number `begin` of the drive on.
    void add_drive(int64_t t, int64_t n, int64_t begin, int64_t length, float* row) const;
    // What product k multiplies at step t, where that is not the hidden state, and its gradient.
    void set_source(size_t k, int64_t t, int64_t n, const float* row) const;
    float* source_gradient(size_t k, int64_t n) const;
    // Where the gradient of the result of product k is written: also by retreat() of a later product.
    float* result_gradient(size_t k, int64_t t, int64_t n) const;
    // The gradient of a part of the drive, where there are several products; a single one's result has the same.
    void set_drive_gradient(int64_t t, int64_t n, int64_t begin, int64_t length, const float* row) const;

    // Makes the sums of those of product k, over all steps and sequences, the gradient of param i.
    void sum_result_gradients(size_t k, size_t i);

    bool is_narrow() const { return type_ == memory::data_type::bf16; }

    int64_t steps_, batch_, hidden_, width_;  // T, N, H, G
    memory::data_type type_;                  // of products
    std::vector<TensorPtr> states_;           // of all steps

private:
    // A product as it is computed. Rows are those of all steps (T N), but in what says that it is of a step (N).
    struct Multiplication {
        Product product;
        int64_t outputs;
        TensorPtr sources = {};
        memory source_step = {}, result = {};                              // of a step
        memory gradients = {}, gradients_across = {}, gradient_step = {};  // of results; transposed; of a step
        memory wide_gradients = {}, source_gradients = {};                 // of a step, in float32
        Calls multiply = {}, multiply_back = {};                           // a step
    };

    bool exposed() const { return spec_.inputs.size() > first_state_; }
    bool constant() const { return spec_.attributes.flag("constant"); }
    uint64_t writes() const;
    memory matrix(const Product& product, const Layout& layout, Calls& calls);
    memory packed(const memory& given, const Layout& wanted, bool stays, Calls& calls);
    void build_forward(Multiplication& m);
    void build_backward();
    void build_backward(Multiplication& m);
    void build_weight_gradient(Multiplication& m);
    void begin();
    void end();
    void begin_backward();
    void set_hidden_source(int64_t t, int64_t n) const;
    void take_gradient(int64_t t, int64_t n) const;
    void close_gradient(size_t k, int64_t t, int64_t n) const;
    void write_gradients();

    std::vector<Multiplication> multiplications_;
    TensorPtr hidden_sources_;  // cont times the hidden state before each step, as products take it
    Calls finish_;              // of backward, behind its first step
    float clip_;                // of the absolute values of results' gradients, if above 0
    bool has_static_;
    size_t first_state_;                     // where they come among the inputs
    std::vector<std::vector<float>> first_;  // states before the first step
    std::vector<std::vector<float>> last_;   // and after the last one
    std::vector<memory> gradients_;          // of the states, at the step that backward has come to
    memory drive_gradients_;                 // if anything needs them
    static constexpr uint64_t never = UINT64_MAX;
    uint64_t packed_at_ = never;  // writes() when constant matrices were packed
};

}  // namespace engine
