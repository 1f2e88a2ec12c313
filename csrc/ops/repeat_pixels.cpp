// Every pixel becomes a rectangle of equal ones. inputs: x (N, C, H, W), any layout with rows of channels;
// outputs: (N, C, H * height, W * width); attributes: height, width (of the rectangle).
#include <algorithm>

#include "kernels/vectorised.h"
#include "ops/common/channel_layout.h"
#include "ops/common/parts.h"

namespace engine {
namespace {

// One row of the bottom, and one of the top.
ENGINE_VECTORISED void widen(const float* x, float* y, int64_t length, int64_t lanes, int64_t x_step, int64_t y_step,
                             int64_t copies) {
    for (int64_t i = 0; i < length; i++, x += x_step)
        for (int64_t copy = 0; copy < copies; copy++, y += y_step)
#pragma omp simd
            for (int64_t lane = 0; lane < lanes; lane++) y[lane] = x[lane];
}

ENGINE_VECTORISED void narrow(const float* y, float* x, int64_t length, int64_t lanes, int64_t x_step, int64_t y_step,
                              int64_t copies) {
    for (int64_t i = 0; i < length; i++, x += x_step)
        for (int64_t copy = 0; copy < copies; copy++, y += y_step)
#pragma omp simd
            for (int64_t lane = 0; lane < lanes; lane++) x[lane] += y[lane];
}

class RepeatPixels : public Op {
public:
    explicit RepeatPixels(OpSpec spec)
        : Op(std::move(spec)),
          height_(spec_.attributes.integer("height")),
          width_(spec_.attributes.integer("width")),
          rows_(input(0)->shape.at(2)),
          columns_(input(0)->shape.at(3)) {
        const Layout top = layout_like(input(0)->layout, spec_.output_shapes[0], memory::data_type::f32);
        const auto rows = rows_of_both(input(0)->layout, top);
        x_ = rows.bottom;
        y_ = rows.top;
        output(0, top);
        touch(Pass::forward, {input(0), outputs_[0]});
        if (input_gradient(0) && output_gradient(0)) touch(Pass::backward, {outputs_[0]->diff, input(0)->diff});
    }

    void forward(const dnnl::stream&) override {
        each_row([this](int64_t bottom, int64_t top) {
            const float* const x = input(0)->data() + bottom;
            for (int64_t copy = 0; copy < height_; copy++) {
                float* const y = outputs_[0]->data() + top + copy * columns_ * width_ * y_.inner_stride;
                widen(x, y, columns_, x_.lanes, x_.inner_stride, y_.inner_stride, width_);
            }
        });
    }

    void backward(const dnnl::stream&) override {
        each_row([this](int64_t bottom, int64_t top) {
            float* const wanted = input(0)->diff->data() + bottom;
            for (int64_t i = 0; i < columns_; i++) std::fill_n(wanted + i * x_.inner_stride, x_.lanes, 0.f);
            for (int64_t copy = 0; copy < height_; copy++) {
                const float* const given = outputs_[0]->diff->data() + top + copy * columns_ * width_ * y_.inner_stride;
                narrow(given, wanted, columns_, x_.lanes, x_.inner_stride, y_.inner_stride, width_);
            }
        });
    }

private:
    // work(offset of a row of the bottom, offset of the first of its rows in the top), in parallel.
    template <typename Work>
    void each_row(const Work& work) const {
        const int64_t blocks = x_.blocks();
#pragma omp parallel for collapse(2) schedule(static)
        for (int64_t panel = 0; panel < x_.panels(); panel++)
            for (int64_t row = 0; row < rows_; row++) {
                const int64_t n = panel / blocks, block = panel % blocks;
                work(x_.offset(n, block) + row * columns_ * x_.inner_stride,
                     y_.offset(n, block) + row * height_ * columns_ * width_ * y_.inner_stride);
            }
    }

    int64_t height_, width_;  // of the rectangles
    int64_t rows_, columns_;  // of the bottom
    ChannelRows x_{}, y_{};
};

static const RegisterOp<RepeatPixels> registered("RepeatPixels");

}  // namespace
}  // namespace engine
