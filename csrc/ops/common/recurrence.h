// The base of LSTM, GRU and RNN: every step of a sequence sees its own input and, through matrices, the hidden state of
// the step before.
// inputs: drive (T N, G), float32 or bf16, what x adds to the products; cont (T, N), by which states are multiplied
// before a step (0 where a sequence begins); with the attribute `static`, a drive that is added at all steps (N, G);
// then, if states are exposed, the first ones, each (1, N, H). outputs: hidden states (T, N, H), or (T N, H); if states
// are exposed, the last ones. attributes: static, constant (parameters change rarely), clip (the limit of the gradients
// of products' results, by magnitude; 0: none).
// params: matrices (outputs, H).
//
// States that are not exposed go on from one batch to the next; their gradients do not. Products and their gradients
// are computed in the drive's precision, all else in float32.
//
// oneDNN has whole recurrent layers, but these cannot begin a sequence in the middle of a batch. On an AMD EPYC they
// trained an LSTM of 256 units in the same time as this, and one of 512 in a tenth less in float32, but in a third more
// in bf16.
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
    // One product of every step. Its source is the hidden state before the step, or what the op makes of that; its
    // matrices, given by their numbers among the params, lie one above the other.
    struct Product {
        std::vector<size_t> matrices;
        bool of_hidden = true;
    };

    // states: how many kinds of state there are; the hidden one is the first. products: in their order within a step. A
    // single one must have G outputs.
    Recurrence(OpSpec spec, size_t states, std::vector<Product> products);

    // Computes step t of sequence n from the result of product k, an array that it may change. With the last product it
    // writes the states of the step to after().
    virtual void advance(size_t k, int64_t t, int64_t n, float* result) = 0;
    // Computes the gradient of that result; products come in reverse. gradient(state, n) holds the gradient of after().
    // When product 0 is done it must hold that of before(), or, for the hidden state, of cont before(), without what
    // products of the hidden state send there: they add it themselves.
    virtual void retreat(size_t k, int64_t t, int64_t n, float* result_gradient) = 0;

    // The rows of one sequence, H numbers: a state before and after step t, and a state's gradient.

    const float* before(size_t state, int64_t t, int64_t n) const {
        return t > 0 ? states_[state]->data() + ((t - 1) * batch_ + n) * hidden_ : first_[state].data() + n * hidden_;
    }
    float* after(size_t state, int64_t t, int64_t n) const {
        return states_[state]->data() + (t * batch_ + n) * hidden_;
    }
    float* gradient(size_t state, int64_t n) const { return address<float>(gradients_[state]) + n * hidden_; }
    float cont(int64_t t, int64_t n) const { return input(1)->data()[t * batch_ + n]; }

    // Adds numbers [begin, begin + length) of the drive, and of the static one, to a row.
    void add_drive(int64_t t, int64_t n, int64_t begin, int64_t length, float* row) const;
    // Sets the source of product k at step t, if that is not the hidden state. source_gradient() is its gradient.
    void set_source(size_t k, int64_t t, int64_t n, const float* row) const;
    float* source_gradient(size_t k, int64_t n) const;
    // Returns where the gradient of product k's result is written; retreat() of a later product may write some of it.
    float* result_gradient(size_t k, int64_t t, int64_t n) const;
    // Sets numbers [begin, begin + length) of the drive's gradient, if there are several products. That of a single
    // product's result is the drive's.
    void set_drive_gradient(int64_t t, int64_t n, int64_t begin, int64_t length, const float* row) const;

    // Makes the gradient of param i, a bias, the sum of those of product k's results over all steps and sequences.
    void sum_result_gradients(size_t k, size_t i);

    bool is_narrow() const { return type_ == memory::data_type::bf16; }

    int64_t steps_, batch_, hidden_, width_;  // T, N, H, G
    memory::data_type type_;                  // of the drive, and of products
    std::vector<TensorPtr> states_;           // after each step, by kind

private:
    // A product as it is computed. Memories have a row for each step and sequence (T N), or, if they are "of a step",
    // for each sequence (N).
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
    Calls finish_;              // what backward does after the last of its steps
    float clip_;                // the limit of results' gradients, if above 0
    bool has_static_;
    size_t first_state_;                     // the number of the first exposed state among the inputs
    std::vector<std::vector<float>> first_;  // states before the first step
    std::vector<std::vector<float>> last_;   // states after the last step
    std::vector<memory> gradients_;          // of the states, at the step that backward has come to
    memory drive_gradients_;                 // empty if nothing reads them
    static constexpr uint64_t never = UINT64_MAX;
    uint64_t packed_at_ = never;  // writes() when constant matrices were packed
};

}  // namespace engine
