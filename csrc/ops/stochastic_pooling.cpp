// Chooses one value of each window, with a probability that is its share of the window's sum; without `sample`,
// computes their mean weighted by these shares (Zeiler and Fergus 2013, arXiv 1301.3557). The choice is a function of
// the seed, the layer's name, the step, the sample's place in the global batch and the window's place in the sample.
// inputs: x (N, C, H, W), float32, row-major, not negative; outputs: (N, C, h, w); attributes: kernel, stride (two
// each), sample.
#include <algorithm>

#include "kernels/dropout_mask.h"
#include "ops/common/onednn_util.h"

namespace engine {
namespace {

class StochasticPooling : public Op {
public:
    explicit StochasticPooling(OpSpec spec)
        : Op(std::move(spec)), samples_(spec_.attributes.flag("sample")), key_(spec_.name) {
        const Dims &in = input(0)->shape, &out = spec_.output_shapes[0];
        kernel_ = spec_.attributes.integers("kernel");
        stride_ = spec_.attributes.integers("stride");
        channels_ = in[1];
        planes_ = in[0] * in[1];
        height_ = in[2];
        width_ = in[3];
        pooled_height_ = out[2];
        pooled_width_ = out[3];
        output(0, plain_layout(out));
        which_ = workspace("which", plain_layout(out));
        touch(Pass::forward, {input(0), outputs_[0], which_});
        if (!input_gradient(0) || !output_gradient(0)) return;
        touch(Pass::backward, {input(0), outputs_[0], which_, outputs_[0]->diff, input(0)->diff});
    }

    void forward(const dnnl::stream&) override {
        each_window([this](int64_t top, int64_t bottom, const Window& window, float chance) {
            const float* const x = input(0)->data() + bottom;
            double sum = 0, squares = 0;
            each_place(window, [&](int64_t at) {
                sum += x[at];
                squares += double(x[at]) * double(x[at]);
            });
            if (!samples_) {
                which_->data()[top] = float(sum);
                outputs_[0]->data()[top] = sum > 0 ? float(squares / sum) : sum == 0 ? 0.f : float(sum);
                return;
            }
            const double threshold = double(chance) * sum;
            int64_t chosen = -1, last = -1;  // -1: nothing of the window is in the plane
            double so_far = 0;
            each_place(window, [&](int64_t at) {
                so_far += x[at];
                last = at;
                if (chosen < 0 && so_far >= threshold) chosen = at;
            });
            if (chosen < 0) chosen = last;
            which_->data()[top] = float(chosen);
            outputs_[0]->data()[top] = chosen < 0 ? 0 : x[chosen];
        });
    }

    void backward(const dnnl::stream&) override {
        std::fill_n(input(0)->diff->data(), input(0)->diff->count(), 0.f);
        each_window([this](int64_t top, int64_t bottom, const Window& window, float) {
            const float given = outputs_[0]->diff->data()[top], known = which_->data()[top];
            float* const wanted = input(0)->diff->data() + bottom;
            if (samples_) {
                if (known >= 0) wanted[int64_t(known)] += given;
            } else if (known > 0) {
                const float* const x = input(0)->data() + bottom;
                const float y = outputs_[0]->data()[top];
                each_place(window, [&](int64_t at) { wanted[at] += given * (2 * x[at] - y) / known; });
            }
        });
    }

private:
    struct Window {
        int64_t top, bottom, left, right;
    };

    // Calls work(index in the top, offset of the bottom's plane, window, random number in [0, 1)) for all windows,
    // planes in parallel.
    template <typename Work>
    void each_window(const Work& work) const {
#pragma omp parallel for schedule(static)
        for (int64_t plane = 0; plane < planes_; plane++) {
            const Counter& counter = *spec_.counter;
            const DropoutMask random =
                key_.of(counter.seed, counter.step, counter.row(plane / channels_, planes_ / channels_));
            const int64_t windows = pooled_height_ * pooled_width_;
            for (int64_t i = 0; i < windows; i++) {
                const int64_t top = i / pooled_width_ * stride_[0], left = i % pooled_width_ * stride_[1];
                const Window window{top, std::min(top + kernel_[0], height_), left,
                                    std::min(left + kernel_[1], width_)};
                const float chance = random.uniform(uint32_t(plane % channels_ * windows + i));
                work(plane * windows + i, plane * height_ * width_, window, chance);
            }
        }
    }

    template <typename Work>
    void each_place(const Window& window, const Work& work) const {
        for (int64_t row = window.top; row < window.bottom; row++)
            for (int64_t column = window.left; column < window.right; column++) work(row * width_ + column);
    }

    bool samples_;
    DropoutMasks key_;
    Dims kernel_, stride_;
    int64_t channels_, planes_, height_, width_, pooled_height_, pooled_width_;
    TensorPtr which_;  // the place of each chosen value in its plane; without `sample`, the sum of each window
};

static const RegisterOp<StochasticPooling> registered("StochasticPooling");

}  // namespace
}  // namespace engine
