// Computes the loss of lifted structured embedding (Song et al. 2016, arXiv 1511.06452), by which the samples of a pair
// (i, j) of one class get nearer to each other than to samples of other classes. With D the distances of the rows, J =
// log(sum over k of other classes of exp(margin - D_ik) + exp(margin - D_jk)) + D_ij; the loss is the sum of max(J,
// 0)^2 over the pairs, each taken once, divided by twice their number.
// inputs: features (N, ...), labels (N), both float32, row-major; outputs: loss (); attributes: loss_weight, margin.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/double_sums.h"
#include "kernels/vectorised.h"
#include "ops/common/onednn_util.h"

namespace engine {
namespace {

constexpr double none = -std::numeric_limits<double>::infinity();  // the logarithm of a sum of nothing

double log_of_sum(double a, double b) {
    const double large = std::max(a, b), small = std::min(a, b);
    return large == none ? none : large + std::log1p(std::exp(small - large));
}

// Adds factor (a - b).
ENGINE_VECTORISED void add_difference(const float* a, const float* b, float factor, float* into, int64_t length) {
#pragma omp simd
    for (int64_t k = 0; k < length; k++) into[k] += factor * (a[k] - b[k]);
}

class LiftedStructSimilaritySoftmaxLoss : public Op {
public:
    explicit LiftedStructSimilaritySoftmaxLoss(OpSpec spec)
        : Op(std::move(spec)),
          margin_(spec_.attributes.real("margin")),
          rows_(input(0)->shape.at(0)),
          row_(input(0)->count() / rows_),
          logs_(size_t(rows_)),
          losses_(size_t(rows_)),
          pulls_(size_t(rows_)) {
        make_loss();
        distances_ = workspace("distances", plain_layout({rows_, rows_}));
        touch(Pass::forward, {input(0), input(1), distances_});
        if (input_gradient(0)) touch(Pass::backward, {input(0), input(1), distances_, input(0)->diff});
    }

    void forward(const dnnl::stream&) override {
        const float* const x = input(0)->data();
#pragma omp parallel for schedule(dynamic)
        for (int64_t i = 0; i < rows_; i++)
            for (int64_t j = 0; j < rows_; j++)  // (i, j) is the same as (j, i), to the last bit
                distances_->data()[i * rows_ + j] =
                    float(std::sqrt(squared_distance(x + i * row_, x + j * row_, row_)));
#pragma omp parallel for schedule(dynamic)
        for (int64_t i = 0; i < rows_; i++) logs_[i] = log_of_others(i);
        pairs_ = 0;
        for (int64_t i = 0; i < rows_; i++)
            for (int64_t j = i + 1; j < rows_; j++) pairs_ += alike(i, j);
#pragma omp parallel for schedule(dynamic)
        for (int64_t i = 0; i < rows_; i++) {
            losses_[i] = 0;
            for (int64_t j = i + 1; j < rows_; j++)
                if (alike(i, j)) losses_[i] += hinge(i, j) * hinge(i, j);
        }
        double sum = 0;  // in the order of the rows, whatever the number of threads
        for (const double each : losses_) sum += each;
        outputs_[0]->data()[0] = float(pairs_ ? sum / (2 * double(pairs_)) : 0);
    }

    // The derivative of a pair's term with respect to its own distance is hinge / pairs. Those with respect to the
    // distances in its sum are minus that, divided among them as by a softmax. So the derivative with respect to a
    // row's distance to another class is minus its share in the row's sum times one factor of the row, its `pull`.
    void backward(const dnnl::stream&) override {
        if (!input_gradient(0)) return;
        float* const diff = input(0)->diff->data();
        const double scale = pairs_ ? loss_gradient() / double(pairs_) : 0;
#pragma omp parallel for schedule(dynamic)
        for (int64_t i = 0; i < rows_; i++) {
            pulls_[i] = 0;
            for (int64_t j = 0; j < rows_; j++)
                if (j != i && alike(i, j) && logs_[i] != none)
                    pulls_[i] += scale * hinge(i, j) * std::exp(logs_[i] - log_of_sum(logs_[i], logs_[j]));
        }
#pragma omp parallel for schedule(dynamic)
        for (int64_t i = 0; i < rows_; i++) {
            float* const wanted = diff + i * row_;
            std::fill_n(wanted, row_, 0.f);
            for (int64_t j = 0; j < rows_; j++) {
                const double d = distance(i, j);
                if (j == i || d == 0) continue;  // a distance of 0 has no direction
                const double slope =
                    alike(i, j) ? scale * hinge(i, j) : -(pulls_[i] * share(i, d) + pulls_[j] * share(j, d));
                const float* const x = input(0)->data();
                add_difference(x + i * row_, x + j * row_, float(slope / d), wanted, row_);
            }
        }
    }

private:
    bool alike(int64_t i, int64_t j) const { return input(1)->data()[i] == input(1)->data()[j]; }
    double distance(int64_t i, int64_t j) const { return distances_->data()[i * rows_ + j]; }

    // Returns max(J, 0) of a pair of one class: 0 if there is no other class, NaN if J is NaN.
    double hinge(int64_t i, int64_t j) const {
        const double around = log_of_sum(logs_[i], logs_[j]) + distance(i, j);
        return around < 0 ? 0 : around;
    }

    // Returns log(sum over rows k of other classes than i's of exp(margin - D_ik)); `none` if there are none.
    double log_of_others(int64_t i) const {
        double nearest = std::numeric_limits<double>::infinity(), sum = 0;
        for (int64_t k = 0; k < rows_; k++)
            if (!alike(i, k)) nearest = std::min(nearest, distance(i, k));
        for (int64_t k = 0; k < rows_; k++)
            if (!alike(i, k)) sum += std::exp(nearest - distance(i, k));
        return sum == 0 ? none : margin_ - nearest + std::log(sum);
    }

    // Returns the share of a distance d from row i to another class in the row's sum.
    double share(int64_t i, double d) const { return logs_[i] == none ? 0 : std::exp(margin_ - d - logs_[i]); }

    double margin_;
    int64_t rows_, row_;  // N, and the elements of each row
    TensorPtr distances_;
    std::vector<double> logs_, losses_, pulls_;  // of the rows
    int64_t pairs_ = 0;
};

static const RegisterOp<LiftedStructSimilaritySoftmaxLoss> registered("LiftedStructSimilaritySoftmaxLoss");

}  // namespace
}  // namespace engine
