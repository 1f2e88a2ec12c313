// Computes x where it is positive, else slope x, with one slope for each channel or one for all.
// inputs: x (N, C, ...), float32 or bf16, any layout with rows of channels; outputs: as x.
// params: slopes (C) or ().
#include <algorithm>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/vectorised.h"
#include "ops/common/channel_layout.h"
#include "ops/common/onednn_util.h"

namespace engine {
namespace {

template <typename T>
ENGINE_VECTORISED void values_of_run(int64_t length, const T* x, float slope, T* y) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) store(number(x[i]) > 0 ? number(x[i]) : slope * number(x[i]), y[i]);
}

// Returns the gradient of the slope.
template <typename T>
ENGINE_VECTORISED double gradients_of_run(int64_t length, const T* x, const T* given, float slope, T* wanted) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < length; i++) {
        const float value = number(x[i]), gradient = number(given[i]);
        sum += value > 0 ? 0 : value * gradient;
        store(value > 0 ? gradient : slope * gradient, wanted[i]);
    }
    return sum;
}

// Short rows without gaps between them are done several at a time, as one row that also fills vectors of bf16.
template <typename T>
ENGINE_VECTORISED void values_of_rows(const ChannelRows& rows, const T* x, const float* slopes, T* y) {
    constexpr int64_t together = 64;
    alignas(64) float repeated[together];
    int64_t row = 0;
    if (rows.inner_stride == rows.lanes && together % rows.lanes == 0) {
        for (int64_t i = 0; i < together; i++) repeated[i] = slopes[i % rows.lanes];
        for (const int64_t step = together / rows.lanes; row + step <= rows.inner; row += step) {
#pragma omp simd
            for (int64_t i = 0; i < together; i++) {
                const float value = number(x[i]);
                store(value > 0 ? value : repeated[i] * value, y[i]);
            }
            x += together;
            y += together;
        }
    }
    for (; row < rows.inner; row++, x += rows.inner_stride, y += rows.inner_stride)
#pragma omp simd
        for (int64_t lane = 0; lane < rows.lanes; lane++) {
            const float value = number(x[lane]);
            store(value > 0 ? value : slopes[lane] * value, y[lane]);
        }
}

// Adds the gradients of the slopes to `sums`.
template <typename T>
ENGINE_VECTORISED void gradients_of_rows(const ChannelRows& rows, const T* x, const T* given, const float* slopes,
                                         T* wanted, double* sums) {
    for (int64_t row = 0; row < rows.inner; row++) {
#pragma omp simd
        for (int64_t lane = 0; lane < rows.lanes; lane++) {
            const float value = number(x[lane]), gradient = number(given[lane]);
            sums[lane] += value > 0 ? 0 : value * gradient;
            store(value > 0 ? gradient : slopes[lane] * gradient, wanted[lane]);
        }
        x += rows.inner_stride;
        given += rows.inner_stride;
        wanted += rows.inner_stride;
    }
}

class PReLU : public Op {
public:
    explicit PReLU(OpSpec spec) : Op(std::move(spec)) {
        const Layout& layout = input(0)->layout;
        rows_ = known_rows(layout);
        plain_param(0);
        slopes_.resize(rows_.padded_channels());
        output(0, layout);
        touch(Pass::forward, {input(0), outputs_[0]});
        may_overwrite(Pass::forward, input(0), outputs_[0]);
        if (!needs_backward() || !output_gradient(0)) return;
        const TensorPtr &given = outputs_[0]->diff, &wanted = input(0)->diff;
        sums_.resize(rows_.outer * rows_.padded_channels());
        touch(Pass::backward, {input(0), given});
        wanted_ = wanted ? wanted->memory : scratch(layout);
        if (!wanted) return;
        touch(Pass::backward, wanted);
        may_overwrite(Pass::backward, given, wanted);
    }

    void forward(const dnnl::stream&) override {
        if (param(0)->count() == rows_.channels)
            pad_channels(rows_, param(0)->data(), 1, slopes_.data());
        else
            std::fill(slopes_.begin(), slopes_.end(), param(0)->data()[0]);
        input(0)->is_bf16() ? values<bf16>() : values<float>();
    }

    void backward(const dnnl::stream&) override {
        input(0)->is_bf16() ? gradients<bf16>() : gradients<float>();
        if (param_gradient(0)) sum_up();
    }

private:
    // Calls work(panel, its first element, its first channel, counted with padding) for all panels.
    template <typename Work>
    void over_panels(const Work& work) const {
        const int64_t blocks = rows_.blocks();
#pragma omp parallel for schedule(static) if (!rows_.small())
        for (int64_t panel = 0; panel < rows_.panels(); panel++)
            work(panel, rows_.offset(panel / blocks, panel % blocks), panel % blocks * rows_.lanes);
    }

    bool in_runs() const { return rows_.lanes == 1 && rows_.inner_stride == 1; }

    template <typename T>
    void values() const {
        const T* const x = address<T>(input(0)->memory);
        T* const y = address<T>(outputs_[0]->memory);
        over_panels([&](int64_t, int64_t begin, int64_t channel) {
            if (in_runs())
                values_of_run(rows_.inner, x + begin, slopes_[channel], y + begin);
            else
                values_of_rows(rows_, x + begin, &slopes_[channel], y + begin);
        });
    }

    template <typename T>
    void gradients() {
        const T *const x = address<T>(input(0)->memory), *const given = address<T>(outputs_[0]->diff->memory);
        T* const wanted = address<T>(wanted_);
        over_panels([&](int64_t panel, int64_t begin, int64_t channel) {
            double* const sums = &sums_[panel * rows_.lanes];
            std::fill_n(sums, rows_.lanes, 0.);
            if (in_runs())
                *sums = gradients_of_run(rows_.inner, x + begin, given + begin, slopes_[channel], wanted + begin);
            else
                gradients_of_rows(rows_, x + begin, given + begin, &slopes_[channel], wanted + begin, sums);
        });
    }

    // Sums the gradients of the slopes in an order that does not depend on the number of threads.
    void sum_up() const {
        const TensorPtr& diff = param(0)->diff;
        const int64_t padded = rows_.padded_channels();
        const bool shared = diff->count() != rows_.channels;
        double total = 0;
        for (int64_t channel = 0; channel < rows_.channels; channel++) {
            if (!shared) total = 0;
            for (int64_t n = 0; n < rows_.outer; n++) total += sums_[n * padded + channel];
            if (shared && channel + 1 < rows_.channels) continue;
            float& into = diff->data()[shared ? 0 : channel];
            into = float(total + (diff->accumulate ? into : 0));
        }
    }

    ChannelRows rows_{};
    std::vector<float> slopes_;  // of padded channels
    std::vector<double> sums_;   // (N, padded channels), gradients of slopes
    memory wanted_;
};

static const RegisterOp<PReLU> registered("PReLU");

}  // namespace
}  // namespace engine
