// Warps planes by a flow: each pixel of the top is read at its own place plus the flow, interpolated bilinearly; it is
// `fill` if that lies outside.
// inputs: x (N, C, H, W), flow (N, 2, H, W), in columns and then in rows, both float32, row-major; outputs: as x;
// attributes: fill (a number).
#include <algorithm>

#include "kernels/whole.h"
#include "ops/common/onednn_util.h"

namespace engine {
namespace {

class FlowWarp : public Op {
public:
    explicit FlowWarp(OpSpec spec) : Op(std::move(spec)), fill_(float(spec_.attributes.real("fill"))) {
        const Dims& shape = input(0)->shape;
        samples_ = shape[0];
        channels_ = shape[1];
        height_ = shape[2];
        width_ = shape[3];
        output(0, plain_layout(shape));
        touch(Pass::forward, {input(0), input(1), outputs_[0]});
        if (!needs_backward() || !output_gradient(0)) return;
        touch(Pass::backward, {input(0), input(1), outputs_[0]->diff});
        for (const auto& each : spec_.inputs)
            if (each->diff) touch(Pass::backward, each->diff);
    }

    void forward(const dnnl::stream&) override {
        const int64_t plane = height_ * width_;
#pragma omp parallel for collapse(2) schedule(static)
        for (int64_t n = 0; n < samples_; n++)
            for (int64_t row = 0; row < height_; row++)
                for (int64_t column = 0; column < width_; column++) {
                    float* const y = outputs_[0]->data() + n * channels_ * plane + row * width_ + column;
                    const float* const x = input(0)->data() + n * channels_ * plane;
                    const Place p = place(n, row, column);
                    for (int64_t c = 0; c < channels_; c++) {
                        const float* const of = x + c * plane;
                        y[c * plane] = p.inside
                                           ? mix(mix(of[p.top + p.left], of[p.top + p.right], p.across),
                                                 mix(of[p.bottom + p.left], of[p.bottom + p.right], p.across), p.down)
                                           : fill_;
                    }
                }
    }

    void backward(const dnnl::stream&) override {
        if (touched(Pass::backward).empty()) return;
        if (input_gradient(0)) differentiate_pixels();
        if (input_gradient(1)) differentiate_flow();
    }

private:
    struct Place {
        bool inside;
        int64_t top, bottom, left, right;  // of the four pixels around; rows as offsets in the plane
        float down, across;                // the weights of bottom and right
    };

    Place place(int64_t n, int64_t row, int64_t column) const {
        const float* const flow = input(1)->data() + 2 * n * height_ * width_ + row * width_ + column;
        const float x = float(column) + flow[0], y = float(row) + flow[height_ * width_];
        if (!(x >= 0 && y >= 0 && x < float(width_) && y < float(height_))) return {};
        const int64_t left = whole(x), top = whole(y);
        return {true,
                top * width_,
                std::min(top + 1, height_ - 1) * width_,
                left,
                std::min(left + 1, width_ - 1),
                y - float(top),
                x - float(left)};
    }

    static float mix(float a, float b, float share) { return (1 - share) * a + share * b; }

    void differentiate_pixels() const {
        const int64_t plane = height_ * width_;
#pragma omp parallel for collapse(2) schedule(static)
        for (int64_t n = 0; n < samples_; n++)
            for (int64_t c = 0; c < channels_; c++) {
                const float* const given = outputs_[0]->diff->data() + (n * channels_ + c) * plane;
                float* const wanted = input(0)->diff->data() + (n * channels_ + c) * plane;
                std::fill_n(wanted, plane, 0.f);
                for (int64_t row = 0; row < height_; row++)
                    for (int64_t column = 0; column < width_; column++) {
                        const Place p = place(n, row, column);
                        if (!p.inside) continue;
                        const float lower = p.down * given[row * width_ + column];
                        const float upper = given[row * width_ + column] - lower;
                        wanted[p.top + p.left] += (1 - p.across) * upper;
                        wanted[p.top + p.right] += p.across * upper;
                        wanted[p.bottom + p.left] += (1 - p.across) * lower;
                        wanted[p.bottom + p.right] += p.across * lower;
                    }
            }
    }

    void differentiate_flow() const {
        const int64_t plane = height_ * width_;
#pragma omp parallel for collapse(2) schedule(static)
        for (int64_t n = 0; n < samples_; n++)
            for (int64_t row = 0; row < height_; row++)
                for (int64_t column = 0; column < width_; column++) {
                    const int64_t here = row * width_ + column;
                    const Place p = place(n, row, column);
                    float of_x = 0, of_y = 0;
                    for (int64_t c = 0; c < channels_ && p.inside; c++) {
                        const float* const of = input(0)->data() + (n * channels_ + c) * plane;
                        const float given = outputs_[0]->diff->data()[(n * channels_ + c) * plane + here];
                        of_x += given * mix(of[p.top + p.right] - of[p.top + p.left],
                                            of[p.bottom + p.right] - of[p.bottom + p.left], p.down);
                        of_y += given * mix(of[p.bottom + p.left] - of[p.top + p.left],
                                            of[p.bottom + p.right] - of[p.top + p.right], p.across);
                    }
                    float* const wanted = input(1)->diff->data() + 2 * n * plane + here;
                    wanted[0] = of_x;
                    wanted[plane] = of_y;
                }
    }

    float fill_;
    int64_t samples_, channels_, height_, width_;
};

static const RegisterOp<FlowWarp> registered("FlowWarp");

}  // namespace
}  // namespace engine
