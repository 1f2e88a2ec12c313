// Draws a Gaussian bell for each point: 1 / (2 pi s^2) exp(-d^2 / (2 s^2)), where d is a pixel's distance from the
// point; values of at most 1e-4 become 0. It has no gradient.
// inputs: points (N, 2K, ...), x and y of each, float32, row-major; outputs: (N, K, H, W); attributes: deviation (s),
// scale_x and scale_y (from the points' numbers to pixels), shift_x and shift_y (added to the pixels).
#include <cmath>

#include "ops/common/onednn_util.h"

namespace engine {
namespace {

class Hotspot : public Op {
public:
    explicit Hotspot(OpSpec spec)
        : Op(std::move(spec)),
          deviation_(spec_.attributes.real("deviation")),
          scale_{spec_.attributes.real("scale_x"), spec_.attributes.real("scale_y")},
          shift_{spec_.attributes.real("shift_x"), spec_.attributes.real("shift_y")} {
        output(0, plain_layout(spec_.output_shapes[0]));
        touch(Pass::forward, {input(0), outputs_[0]});
    }

    void forward(const dnnl::stream&) override {
        const Dims& shape = spec_.output_shapes[0];
        const int64_t height = shape[2], width = shape[3], planes = shape[0] * shape[1];
        const double square = 2 * deviation_ * deviation_, peak = 1 / (square * pi);
        const float* const points = input(0)->data();
        float* const y = outputs_[0]->data();
#pragma omp parallel for schedule(static)
        for (int64_t plane = 0; plane < planes; plane++) {
            const double px = points[2 * plane] * scale_[0] + shift_[0];
            const double py = points[2 * plane + 1] * scale_[1] + shift_[1];
            float* out = y + plane * height * width;
            for (int64_t h = 0; h < height; h++) {
                for (int64_t w = 0; w < width; w++) {
                    const double dx = px - double(w), dy = py - double(h);
                    const double value = peak * std::exp(-(dx * dx + dy * dy) / square);
                    *out++ = value > least ? float(value) : 0.f;
                }
            }
        }
    }

    void backward(const dnnl::stream&) override {}

private:
    static constexpr double pi = 3.14159265358979323846, least = 1e-4;
    double deviation_, scale_[2], shift_[2];
};

static const RegisterOp<Hotspot> registered("Hotspot");

}  // namespace
}  // namespace engine
