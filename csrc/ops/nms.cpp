// Finds the peaks of planes (Cao et al. 2017, arXiv 1611.08050): pixels above a threshold and above their eight
// neighbours. It has no backward.
// inputs: x (N, C, H, W), float32, row-major; outputs: (N, parts, most + 1, 3), for the first `parts` planes of each
// sample: a row with the number of peaks, 0 and 0, then column, row and value of the first `most` peaks, counted row by
// row, then rows of 0; attributes: threshold.
#include <algorithm>

#include "ops/common/onednn_util.h"

namespace engine {
namespace {

class Nms : public Op {
public:
    explicit Nms(OpSpec spec) : Op(std::move(spec)), threshold_(float(spec_.attributes.real("threshold"))) {
        height_ = input(0)->shape[2];
        width_ = input(0)->shape[3];
        output(0, plain_layout(spec_.output_shapes[0]));
        touch(Pass::forward, {input(0), outputs_[0]});
    }

    void forward(const dnnl::stream&) override {
        const Dims &in = input(0)->shape, &out = spec_.output_shapes[0];
#pragma omp parallel for collapse(2)
        for (int64_t n = 0; n < out[0]; n++)
            for (int64_t part = 0; part < out[1]; part++)
                find(input(0)->data() + (n * in[1] + part) * height_ * width_, out[2] - 1,
                     outputs_[0]->data() + (n * out[1] + part) * out[2] * 3);
    }

private:
    // Writes the rows of one plane. Pixels of the border are no peaks: they do not have eight neighbours.
    void find(const float* x, int64_t most, float* found) const {
        std::fill_n(found, (most + 1) * 3, 0.f);
        int64_t count = 0;
        for (int64_t row = 1; row < height_ - 1; row++)
            for (int64_t column = 1; column < width_ - 1; column++) {
                if (!is_peak(x + row * width_ + column)) continue;
                if (++count <= most) describe(x, row, column, found + count * 3);
            }
        found[0] = float(count);
    }

    bool is_peak(const float* pixel) const {
        if (!(*pixel > threshold_)) return false;
        for (int64_t row = -1; row <= 1; row++)
            for (int64_t column = -1; column <= 1; column++)
                if ((row != 0 || column != 0) && !(*pixel > pixel[row * width_ + column])) return false;
        return true;
    }

    // Sets a peak's column, row and value. Its place is the mean place of the pixels up to three around it, weighted by
    // their values if these are above 0; the plane's first row and column do not count.
    void describe(const float* x, int64_t row, int64_t column, float* peak) const {
        float across = 0, down = 0, sum = 0;
        for (int64_t h = std::max<int64_t>(row - 3, 1); h <= std::min(row + 3, height_ - 1); h++)
            for (int64_t w = std::max<int64_t>(column - 3, 1); w <= std::min(column + 3, width_ - 1); w++) {
                const float value = x[h * width_ + w];
                if (!(value > 0)) continue;
                across += float(w) * value;
                down += float(h) * value;
                sum += value;
            }
        peak[0] = sum > 0 ? across / sum : float(column);
        peak[1] = sum > 0 ? down / sum : float(row);
        peak[2] = x[row * width_ + column];
    }

    float threshold_;
    int64_t height_, width_;
};

static const RegisterOp<Nms> registered("Nms");

}  // namespace
}  // namespace engine
