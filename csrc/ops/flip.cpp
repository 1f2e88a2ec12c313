// Planes turned left to right, or upside down, or both. inputs: x (N, C, H, W), row-major; attributes: width, height
// (whether that axis is turned).
#include <algorithm>

#include "ops/common/onednn_util.h"

namespace engine {
namespace {

class Flip : public Op {
public:
    explicit Flip(OpSpec spec)
        : Op(std::move(spec)),
          turns_columns_(spec_.attributes.flag("width")),
          turns_rows_(spec_.attributes.flag("height")),
          height_(input(0)->shape.at(2)),
          width_(input(0)->shape.at(3)) {
        output(0, plain_layout(spec_.output_shapes[0]));
        touch(Pass::forward, {input(0), outputs_[0]});
        if (input_gradient(0) && output_gradient(0)) touch(Pass::backward, {outputs_[0]->diff, input(0)->diff});
    }

    void forward(const dnnl::stream&) override { turn(input(0)->data(), outputs_[0]->data()); }
    void backward(const dnnl::stream&) override { turn(outputs_[0]->diff->data(), input(0)->diff->data()); }

private:
    void turn(const float* from, float* to) const {
        const int64_t rows = input(0)->count() / width_;
#pragma omp parallel for schedule(static)
        for (int64_t row = 0; row < rows; row++) {
            const int64_t in_plane = row % height_;
            const float* const x = from + row * width_;
            float* const y = to + (turns_rows_ ? row - in_plane + height_ - 1 - in_plane : row) * width_;
            if (turns_columns_)
                std::reverse_copy(x, x + width_, y);
            else
                std::copy_n(x, width_, y);
        }
    }

    bool turns_columns_, turns_rows_;
    int64_t height_, width_;
};

static const RegisterOp<Flip> registered("Flip");

}  // namespace
}  // namespace engine
