// Planes in another size: a pixel of the top is a weighted mean of those around its place in the bottom, by weights
// that do not depend on the values. inputs: x (N, C, H, W), row-major; outputs: (N, C, h, w); attributes, for rows and
// for columns: first (for each pixel of the top, the first of the bottom that counts), weights (`taps` of each), and
// taps. With `skip_nan` what is not a number does not count, and the result is none where more than half would not.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/common/onednn_util.h"

namespace engine {
namespace {

class Resample : public Op {
public:
    explicit Resample(OpSpec spec)
        : Op(std::move(spec)), skips_(spec_.attributes.flag("skip_nan")), rows_(axis("row")), columns_(axis("column")) {
        const Dims& in = input(0)->shape;
        planes_ = in[0] * in[1];
        height_ = in[2];
        width_ = in[3];
        output(0, plain_layout(spec_.output_shapes[0]));
        touch(Pass::forward, {input(0), outputs_[0]});
        if (input_gradient(0) && output_gradient(0)) touch(Pass::backward, {outputs_[0]->diff, input(0)->diff});
    }

    void forward(const dnnl::stream&) override {
        const int64_t top_height = int64_t(rows_.first.size()), top_width = int64_t(columns_.first.size());
#pragma omp parallel for collapse(2) schedule(static)
        for (int64_t plane = 0; plane < planes_; plane++)
            for (int64_t i = 0; i < top_height; i++) {
                const float* const x = input(0)->data() + plane * height_ * width_;
                float* const y = outputs_[0]->data() + (plane * top_height + i) * top_width;
                for (int64_t j = 0; j < top_width; j++) y[j] = skips_ ? mean_of_numbers(x, i, j) : mean(x, i, j);
            }
    }

    void backward(const dnnl::stream&) override {
        if (touched(Pass::backward).empty()) return;
        const int64_t top_height = int64_t(rows_.first.size()), top_width = int64_t(columns_.first.size());
#pragma omp parallel for schedule(static)
        for (int64_t plane = 0; plane < planes_; plane++) {
            const float* given = outputs_[0]->diff->data() + plane * top_height * top_width;
            float* const wanted = input(0)->diff->data() + plane * height_ * width_;
            std::fill_n(wanted, height_ * width_, 0.f);
            for (int64_t i = 0; i < top_height; i++)
                for (int64_t j = 0; j < top_width; j++, given++)
                    each_tap(i, j, [&](int64_t at, float weight) { wanted[at] += weight * *given; });
        }
    }

private:
    struct Axis {
        Dims first;
        std::vector<float> weights;
        int64_t taps;
    };

    Axis axis(const std::string& name) const {
        const std::vector<double> weights = spec_.attributes.reals(name + "_weights");
        return {spec_.attributes.integers(name + "_first"),
                {weights.begin(), weights.end()},
                spec_.attributes.integer(name + "_taps")};
    }

    template <typename Work>
    void each_tap(int64_t i, int64_t j, const Work& work) const {
        for (int64_t u = 0; u < rows_.taps; u++) {
            const float down = rows_.weights[i * rows_.taps + u];
            if (down == 0) continue;  // beyond the plane, too
            const int64_t row = (rows_.first[i] + u) * width_ + columns_.first[j];
            for (int64_t v = 0; v < columns_.taps; v++) {
                const float across = columns_.weights[j * columns_.taps + v];
                if (across != 0) work(row + v, down * across);
            }
        }
    }

    float mean(const float* x, int64_t i, int64_t j) const {
        float sum = 0;
        each_tap(i, j, [&](int64_t at, float weight) { sum += weight * x[at]; });
        return sum;
    }

    float mean_of_numbers(const float* x, int64_t i, int64_t j) const {
        float sum = 0, numbers = 0, others = 0;
        each_tap(i, j, [&](int64_t at, float weight) {
            if (std::isnan(x[at])) {
                others += weight;
            } else {
                sum += weight * x[at];
                numbers += weight;
            }
        });
        return others > numbers / 2 ? std::numeric_limits<float>::quiet_NaN() : sum / numbers;
    }

    bool skips_;
    Axis rows_, columns_;
    int64_t planes_, height_, width_;
};

static const RegisterOp<Resample> registered("Resample");

}  // namespace
}  // namespace engine
