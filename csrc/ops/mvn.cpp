// Normalises each channel of a sample, or with across_channels each sample, to mean 0 and, with normalize_variance, to
// standard deviation 1: y = (x - mean) / (deviation + eps).
// inputs: x (N, C, ...), float32 or bf16, any layout with rows of channels; outputs: as x; attributes: across_channels,
// normalize_variance, eps.
#include <omp.h>

#include <cmath>
#include <numeric>

#include "kernels/bf16.h"
#include "ops/common/channel_layout.h"
#include "ops/common/onednn_util.h"

namespace engine {
namespace {

class MVN : public Op {
public:
    explicit MVN(OpSpec spec)
        : Op(std::move(spec)),
          across_(spec_.attributes.flag("across_channels")),
          scales_variance_(spec_.attributes.flag("normalize_variance")),
          eps_(spec_.attributes.real("eps")) {
        const Layout& layout = input(0)->layout;
        rows_ = known_rows(layout);
        const size_t padded = size_t(rows_.padded_channels());
        zeros_.resize(padded);
        samples_.resize(size_t(rows_.outer));
        for (Sample& sample : samples_) {
            for (auto* each : {&sample.sums, &sample.others, &sample.deviations}) each->resize(padded);
            for (auto* each : {&sample.near, &sample.scale, &sample.shift, &sample.weight}) each->resize(padded);
        }
        output(0, layout);
        touch(Pass::forward, {input(0), outputs_[0]});
        may_overwrite(Pass::forward, input(0), outputs_[0]);
        if (!input_gradient(0) || !output_gradient(0)) return;
        touch(Pass::backward, {outputs_[0], outputs_[0]->diff, input(0)->diff});
        may_overwrite(Pass::backward, outputs_[0]->diff, input(0)->diff);
        may_overwrite(Pass::backward, outputs_[0], input(0)->diff);
    }

    void forward(const dnnl::stream&) override { input(0)->is_bf16() ? values<bf16>() : values<float>(); }
    void backward(const dnnl::stream&) override { input(0)->is_bf16() ? gradients<bf16>() : gradients<float>(); }

private:
    // For each channel of a sample: sums, the deviations that forward keeps for backward, and coefficients, which are
    // zero in padding.
    struct Sample {
        std::vector<double> sums, others, deviations;
        std::vector<float> near, scale, shift, weight;
    };

    // Calls work(sample, its rows, where they begin) for all samples: in parallel, or one by one if that keeps more
    // threads busy.
    template <typename Work>
    void each_sample(const Work& work) {
        ChannelRows one = rows_;
        one.outer = 1;
        const bool together = rows_.outer >= omp_get_max_threads() || rows_.blocks() == 1;
#pragma omp parallel for schedule(static) if (together && !rows_.small())
        for (int64_t n = 0; n < rows_.outer; n++) work(samples_[size_t(n)], one, n * rows_.outer_stride);
    }

    // Turns sums into averages.
    void average(std::vector<double>& sums) const {
        const auto end = sums.begin() + rows_.channels;
        for (auto sum = sums.begin(); sum != end; sum++) *sum /= double(rows_.inner);
        if (across_) std::fill(sums.begin(), end, std::accumulate(sums.begin(), end, 0.0) / double(rows_.channels));
    }

    template <typename T>
    void values() {
        each_sample([&](Sample& sample, const ChannelRows& rows, int64_t at) {
            const T* const x = address<T>(input(0)) + at;
            // Deviations are summed from one of the values, not the mean: that is as good, and exact if all are equal.
            for (int64_t c = 0; c < rows.channels; c++)
                sample.near[c] = number(x[across_ ? 0 : rows.offset(0, c / rows.lanes) + c % rows.lanes]);
            sum_deviations(rows, x, {sample.near.data()}, sample.sums.data(), sample.others.data());
            average(sample.sums);
            average(sample.others);
            for (int64_t c = 0; c < rows.channels; c++) {
                const double away = sample.sums[c], variance = sample.others[c] - away * away;
                const double deviation = sample.deviations[c] = std::sqrt(std::max(variance, 0.0));
                sample.scale[c] = scales_variance_ ? float(1 / (deviation + eps_)) : 1;
                sample.shift[c] = -sample.scale[c] * float(away);
            }
            affine_rows(rows, x, AffineTerms<T>{{sample.near.data()}, {sample.scale.data()}, {sample.shift.data()}},
                        address<T>(outputs_[0]) + at);
        });
    }

    // With g the gradient of y and d the deviation; means are over the values that are normalised together:
    //   dx = (g - mean(g) - y mean(g y) (d + eps) / d) / (d + eps)
    template <typename T>
    void gradients() {
        each_sample([&](Sample& sample, const ChannelRows& rows, int64_t at) {
            const T *const y = address<T>(outputs_[0]) + at, *const given = address<T>(outputs_[0]->diff) + at;
            affine_gradients<T>(rows, given, y, {sample.scale.data()}, nullptr, sample.others.data(),
                                sample.sums.data());
            average(sample.sums);
            average(sample.others);
            for (int64_t c = 0; c < rows.channels; c++) {
                const bool varies = scales_variance_ && sample.deviations[c] > 0;
                sample.near[c] = float(sample.sums[c]);
                sample.weight[c] = varies ? -float(sample.others[c] / sample.deviations[c]) : 0;
            }
            affine_rows(
                rows, given,
                AffineTerms<T>{{sample.near.data()}, {sample.scale.data()}, {zeros_.data()}, y, {sample.weight.data()}},
                address<T>(input(0)->diff) + at);
        });
    }

    bool across_, scales_variance_;
    double eps_;
    ChannelRows rows_{};
    std::vector<Sample> samples_;
    std::vector<float> zeros_;
};

static const RegisterOp<MVN> registered("MVN");

}  // namespace
}  // namespace engine
