// Computes the L1Loss and LpqLoss of FlowNet 2: the sum over the positions of (scale sum over the channels of (|a - b|
// + p_epsilon)^p + q_epsilon)^q, divided by N or, with by_entries, by how many of a - b are numbers, divided by the
// channels. A NaN counts as 0. With plateau above 0, positions with a sum below plateau^2 count as 0; with by_value
// (for p = 1 and q = 1), values below plateau.
// inputs: a (N, C, ...), optionally b (as a; 0 without it), both float32, row-major; outputs: loss (); attributes:
// loss_weight, p, q (one for each episode), begins (the first iterations of the episodes), p_epsilon, q_epsilon, scale,
// by_entries, plateau, by_value.
#include <cmath>

#include "ops/common/row_loss.h"

namespace engine {
namespace {

class LpqLoss : public RowLoss {
public:
    explicit LpqLoss(OpSpec spec)
        : RowLoss(std::move(spec)),
          channels_(input(0)->shape.size() > 1 ? input(0)->shape[1] : 1),
          inner_(row_ / channels_),
          p_epsilon_(spec_.attributes.real("p_epsilon")),
          q_epsilon_(spec_.attributes.real("q_epsilon")),
          scale_(spec_.attributes.real("scale")),
          plateau_(spec_.attributes.real("plateau")),
          by_entries_(spec_.attributes.flag("by_entries")),
          by_value_(spec_.attributes.flag("by_value")) {}

    void forward(const dnnl::stream&) override {
        choose_episode();
        const float *const a = input(0)->data(), *const b = second();
        const Sums all = sum_of_strips(strips(), sums_, [=, this](int64_t n, int64_t begin, int64_t width) {
            Sums sums;
            for (int64_t i = begin; i < begin + width; i++) {
                const double sum = sum_at(a, b, n * row_ + i, &sums.entries);
                sums.losses += by_value_ ? sum : std::pow((flat(sum) ? 0 : sum) + q_epsilon_, q_);
            }
            return sums;
        });
        divisor_ = by_entries_ ? double(all.entries) / double(channels_) : double(rows_);
        outputs_[0]->data()[0] = float(all.losses / divisor_);
    }

    void backward(const dnnl::stream&) override {
        const double scale = loss_gradient() / divisor_;
        const float *const a = input(0)->data(), *const b = second();
        float* const of_a = input_gradient(0) ? input(0)->diff->data() : nullptr;
        float* const of_b = b && input_gradient(1) ? input(1)->diff->data() : nullptr;
        strips().each([=, this](int64_t, int64_t n, int64_t begin, int64_t width) {
            for (int64_t i = begin; i < begin + width; i++) {
                const double sum = sum_at(a, b, n * row_ + i, nullptr);
                double outer = scale * scale_;
                if (!by_value_) outer *= flat(sum) ? 0 : q_ * std::pow(sum + q_epsilon_, q_ - 1);
                for (int64_t c = 0; c < channels_; c++) {
                    const int64_t at = n * row_ + c * inner_ + i;
                    const double gap = this->gap(a, b, at), size = std::abs(gap);
                    double slope = gap > 0 ? outer : -outer;
                    if (std::isnan(gap) || (by_value_ && size < plateau_))
                        slope = 0;
                    else if (p_ != 1)
                        slope *= p_ * std::pow(size + p_epsilon_, p_ - 1);
                    if (of_a) of_a[at] = float(slope);
                    if (of_b) of_b[at] = float(-slope);
                }
            }
        });
    }

private:
    struct Sums {
        double losses = 0;
        int64_t entries = 0;

        void operator+=(const Sums& other) {
            losses += other.losses;
            entries += other.entries;
        }
    };

    Strips strips() const { return {rows_, channels_, inner_}; }
    const float* second() const { return spec_.inputs.size() > 1 ? input(1)->data() : nullptr; }
    double gap(const float* a, const float* b, int64_t at) const {
        return b ? double(a[at]) - double(b[at]) : double(a[at]);
    }

    // Tells whether a position's sum is on the plateau.
    bool flat(double sum) const { return !by_value_ && plateau_ > 0 && sum < plateau_ * plateau_; }

    // Returns the scaled sum over the channels of a position; first: the index of its first channel. Adds to `entries`
    // how many of a - b are numbers.
    double sum_at(const float* a, const float* b, int64_t first, int64_t* entries) const {
        double sum = 0;
        for (int64_t c = 0; c < channels_; c++) {
            const double gap = this->gap(a, b, first + c * inner_), size = std::isnan(gap) ? 0 : std::abs(gap);
            if (entries) *entries += !std::isnan(gap);
            if (by_value_ && size < plateau_) continue;
            sum += p_ == 1 ? size + p_epsilon_ : std::pow(size + p_epsilon_, p_);
        }
        return scale_ * sum;
    }

    void choose_episode() {
        const Dims begins = spec_.attributes.integers("begins");
        const auto step = int64_t(spec_.counter->step);
        size_t episode = 0;
        while (episode + 1 < begins.size() && begins[episode + 1] <= step) episode++;
        p_ = spec_.attributes.reals("p")[episode];
        q_ = spec_.attributes.reals("q")[episode];
    }

    int64_t channels_, inner_;
    double p_epsilon_, q_epsilon_, scale_, plateau_, p_ = 1, q_ = 1, divisor_ = 1;
    bool by_entries_, by_value_;
    std::vector<Sums> sums_;
};

static const RegisterOp<LpqLoss> registered("LpqLoss");

}  // namespace
}  // namespace engine
