// A sequence in which every step sees its own input and, through one matrix, the hidden state of the step before: what
// LSTM and RNN have in common.
// inputs: drive (T N, G), what the units get from x; cont (T, N), by which states are multiplied before a step (0 where
// a sequence begins); with the attribute `static`, a further drive of all steps (N, G); then, if states are exposed,
// the first ones, each (1, N, H). attributes: static, clip (what gradients of the drive are cut off at, 0 for nowhere).
// params: matrix (G, H). outputs: hidden states (T, N, H), or (T N, H); if states are
// exposed, the last ones. States that are not exposed go on from one batch to the next; gradients do not.
#pragma once

#include "ops/common/onednn_util.h"

namespace engine {

class Recurrence : public Op {
public:
    void forward(const dnnl::stream& stream) override;
    void backward(const dnnl::stream& stream) override;

protected:
    // `states` is how many kinds of state there are; the hidden one is the first.
    Recurrence(OpSpec spec, size_t states);

    // Step t of sequence n, forward: from the drive (G) and before() to after().
    virtual void advance(int64_t t, int64_t n, const float* drive) = 0;
    // Backward: from gradient(k, n), what arrives at after(), to what the drive gets (G), and, for all states but the
    // hidden one, to what before() gets, in gradient(k, n) again.
    virtual void retreat(int64_t t, int64_t n, float* drive_gradient) = 0;

    const float* before(size_t state, int64_t t, int64_t n) const {
        return t > 0 ? states_[state]->data() + ((t - 1) * batch_ + n) * hidden_ : first_[state].data() + n * hidden_;
    }
    float* after(size_t state, int64_t t, int64_t n) const {
        return states_[state]->data() + (t * batch_ + n) * hidden_;
    }
    float* gradient(size_t state, int64_t n) const {
        return static_cast<float*>(gradients_[state].get_data_handle()) + n * hidden_;
    }
    float cont(int64_t t, int64_t n) const { return input(1)->data()[t * batch_ + n]; }

    int64_t steps_, batch_, hidden_, width_;  // T, N, H, G
    std::vector<TensorPtr> states_;           // of all steps

private:
    bool exposed() const { return spec_.inputs.size() > first_state_; }
    void build_forward();
    void build_backward();
    void begin();
    void end();
    void write_gradients();

    float clip_;  // of the absolute values of the drive's gradients, if above 0
    bool has_static_;
    size_t first_state_;                     // where they come among the inputs
    std::vector<std::vector<float>> first_;  // states before the first step
    std::vector<std::vector<float>> last_;   // and after the last one
    TensorPtr source_;                       // cont times the hidden state before each step
    memory source_step_, product_;           // of one step: that, and the matrix times that
    Calls step_forward_, step_backward_, finish_backward_;
    std::vector<memory> gradients_;  // of the states, at the step that backward has come to
    memory drive_gradients_, drive_gradient_step_;
    dnnl::inner_product_forward::primitive_desc hint_;
};

}  // namespace engine
