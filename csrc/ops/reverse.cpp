// One axis in reverse. inputs: x, row-major; attributes: axis.
#include <algorithm>
#include <numeric>

#include "ops/common/onednn_util.h"

namespace engine {
namespace {

class Reverse : public Op {
public:
    explicit Reverse(OpSpec spec) : Op(std::move(spec)) {
        const Dims& shape = input(0)->shape;
        const auto axis = shape.begin() + spec_.attributes.integer("axis");
        length_ = *axis;
        inner_ = std::accumulate(axis + 1, shape.end(), int64_t(1), std::multiplies<>());
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
        const int64_t rows = input(0)->count() / inner_;
#pragma omp parallel for schedule(static)
        for (int64_t row = 0; row < rows; row++) {
            const int64_t place = row % length_;
            std::copy_n(from + row * inner_, inner_, to + (row + length_ - 1 - 2 * place) * inner_);
        }
    }

    int64_t length_, inner_;
};

static const RegisterOp<Reverse> registered("Reverse");

}  // namespace
}  // namespace engine
