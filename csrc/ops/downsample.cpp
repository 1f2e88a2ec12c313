// Resizes planes: a pixel of the top is the weighted mean of the pixels around its place in the bottom. NaNs do not
// count, but the mean is NaN if their weight is more than half of that of the numbers. It has no backward.
// inputs: x (N, C, H, W), float32, row-major; outputs: (N, C, h, w); attributes: those of Resample but `wide`.
#include <cmath>
#include <limits>

#include "ops/common/onednn_util.h"

namespace engine {
namespace {

class Downsample : public Op {
public:
    explicit Downsample(OpSpec spec) : Op(std::move(spec)), rows_(axis("row")), columns_(axis("column")) {
        output(0, plain_layout(spec_.output_shapes[0]));
        touch(Pass::forward, {input(0), outputs_[0]});
    }

    void forward(const dnnl::stream&) override {
        const Dims& in = input(0)->shape;
        const int64_t planes = in[0] * in[1], pixels = in[2] * in[3];
        const int64_t height = int64_t(rows_.first.size()), width = int64_t(columns_.first.size());
#pragma omp parallel for collapse(2) schedule(static)
        for (int64_t plane = 0; plane < planes; plane++)
            for (int64_t i = 0; i < height; i++) {
                const float* const x = input(0)->data() + plane * pixels;
                float* const y = outputs_[0]->data() + (plane * height + i) * width;
                for (int64_t j = 0; j < width; j++) y[j] = mean_of_numbers(x, in[3], i, j);
            }
    }

private:
    struct Axis {
        Dims first;
        std::vector<double> weights;
        int64_t taps;
    };

    Axis axis(const std::string& name) const {
        return {spec_.attributes.integers(name + "_first"), spec_.attributes.reals(name + "_weights"),
                spec_.attributes.integer(name + "_taps")};
    }

    float mean_of_numbers(const float* x, int64_t width, int64_t i, int64_t j) const {
        float sum = 0, numbers = 0, others = 0;
        for (int64_t u = 0; u < rows_.taps; u++)
            for (int64_t v = 0; v < columns_.taps; v++) {
                const auto weight =
                    float(rows_.weights[i * rows_.taps + u]) * float(columns_.weights[j * columns_.taps + v]);
                if (weight == 0) continue;  // also for pixels beyond the plane
                const float value = x[(rows_.first[i] + u) * width + columns_.first[j] + v];
                if (std::isnan(value)) {
                    others += weight;
                } else {
                    sum += weight * value;
                    numbers += weight;
                }
            }
        return others > numbers / 2 ? std::numeric_limits<float>::quiet_NaN() : sum / numbers;
    }

    Axis rows_, columns_;
};

static const RegisterOp<Downsample> registered("Downsample");

}  // namespace
}  // namespace engine
