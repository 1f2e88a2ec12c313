// Reverses the order of elements along neighbouring axes, which count as one.
// inputs: x, float32, row-major; outputs: as x; attributes: begin, end (the axes [begin, end); none if they are equal).
#include <algorithm>

#include "ops/common/onednn_util.h"

namespace engine {
namespace {

class Reverse : public Op {
public:
    explicit Reverse(OpSpec spec) : Op(std::move(spec)) {
        const Dims& shape = input(0)->shape;
        const auto begin = shape.begin() + spec_.attributes.integer("begin");
        const auto end = shape.begin() + spec_.attributes.integer("end");
        length_ = count_of(Dims(begin, end));
        inner_ = count_of(Dims(end, shape.end()));
        output(0, plain_layout(spec_.output_shapes[0]));
        touch(Pass::forward, {input(0), outputs_[0]});
        if (input_gradient(0) && output_gradient(0)) touch(Pass::backward, {outputs_[0]->diff, input(0)->diff});
    }

    void forward(const dnnl::stream&) override { turn(input(0)->data(), outputs_[0]->data()); }
    void backward(const dnnl::stream&) override {
        if (!touched(Pass::backward).empty()) turn(outputs_[0]->diff->data(), input(0)->diff->data());
    }

private:
    void turn(const float* from, float* to) const {
        const int64_t runs = input(0)->count() / (length_ * inner_);
        if (inner_ == 1) {
#pragma omp parallel for schedule(static)
            for (int64_t run = 0; run < runs; run++)
                std::reverse_copy(from + run * length_, from + (run + 1) * length_, to + run * length_);
            return;
        }
#pragma omp parallel for collapse(2) schedule(static)
        for (int64_t run = 0; run < runs; run++)
            for (int64_t row = 0; row < length_; row++)
                std::copy_n(from + (run * length_ + row) * inner_, inner_,
                            to + (run * length_ + length_ - 1 - row) * inner_);
    }

    int64_t length_, inner_;  // elements along the axes together, and along those behind them
};

static const RegisterOp<Reverse> registered("Reverse");

}  // namespace
}  // namespace engine
