// Bilinear interpolation with aligned corners: the first and the last pixel of x, after cropping, become those of the
// top. inputs: x (N, C, H, W), row-major; attributes: crop_begin, crop_end (pixels left out on both axes).
#include <algorithm>

#include "kernels/whole.h"
#include "ops/common/onednn_util.h"

namespace engine {
namespace {

class Interp : public Op {
public:
    explicit Interp(OpSpec spec) : Op(std::move(spec)) {
        const Dims &in = input(0)->shape, &out = spec_.output_shapes[0];
        rows_ = line(in[2], out[2]);
        columns_ = line(in[3], out[3]);
        planes_ = in[0] * in[1];
        height_ = in[2];
        width_ = in[3];
        output(0, plain_layout(out));
        touch(Pass::forward, {input(0), outputs_[0]});
        if (input_gradient(0) && output_gradient(0)) touch(Pass::backward, {outputs_[0]->diff, input(0)->diff});
    }

    void forward(const dnnl::stream&) override {
#pragma omp parallel for
        for (int64_t plane = 0; plane < planes_; plane++) {
            const float* const x = input(0)->data() + plane * height_ * width_;
            float* y = outputs_[0]->data() + plane * int64_t(rows_.size() * columns_.size());
            for (const Point& row : rows_) {
                const float *const upper = x + row.first * width_, *const lower = x + row.second * width_;
                for (const Point& column : columns_) {
                    const float above = mix(upper[column.first], upper[column.second], column.weight);
                    const float below = mix(lower[column.first], lower[column.second], column.weight);
                    *y++ = mix(above, below, row.weight);
                }
            }
        }
    }

    void backward(const dnnl::stream&) override {
#pragma omp parallel for
        for (int64_t plane = 0; plane < planes_; plane++) {
            const float* given = outputs_[0]->diff->data() + plane * int64_t(rows_.size() * columns_.size());
            float* const wanted = input(0)->diff->data() + plane * height_ * width_;
            std::fill_n(wanted, height_ * width_, 0.f);
            for (const Point& row : rows_) {
                float *const upper = wanted + row.first * width_, *const lower = wanted + row.second * width_;
                for (const Point& column : columns_) {
                    const float below = row.weight * *given, above = *given - below;
                    upper[column.first] += (1 - column.weight) * above;
                    upper[column.second] += column.weight * above;
                    lower[column.first] += (1 - column.weight) * below;
                    lower[column.second] += column.weight * below;
                    given++;
                }
            }
        }
    }

private:
    // A pixel of the top along one axis: what it takes from the two nearest of the bottom.
    struct Point {
        int64_t first, second;
        float weight;  // of the second
    };

    static float mix(float a, float b, float weight) { return (1 - weight) * a + weight * b; }

    std::vector<Point> line(int64_t in, int64_t out) const {
        const int64_t begin = spec_.attributes.integer("crop_begin");
        const int64_t last = in - begin - spec_.attributes.integer("crop_end") - 1;  // of what is not cropped
        const double step = out > 1 ? double(last) / double(out - 1) : 0;
        std::vector<Point> points(out);
        for (int64_t i = 0; i < out; i++) {
            const double at = step * double(i);
            const int64_t first = std::min(whole(at), last);
            points[i] = {begin + first, begin + std::min(first + 1, last), float(at - double(first))};
        }
        return points;
    }

    std::vector<Point> rows_, columns_;
    int64_t planes_, height_, width_;
};

static const RegisterOp<Interp> registered("Interp");

}  // namespace
}  // namespace engine
