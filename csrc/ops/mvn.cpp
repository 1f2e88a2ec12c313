// Every row gets mean 0 and, with `normalize_variance`, standard deviation 1: y = (x - mean) / (deviation + eps).
// inputs: x (row-major); attributes: rows (how many x is made of), normalize_variance, eps.
#include <cmath>

#include "kernels/double_sums.h"
#include "kernels/vectorised.h"
#include "ops/common/onednn_util.h"

namespace engine {
namespace {

ENGINE_VECTORISED double sum_of_squares(const float* x, float mean, int64_t length) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t k = 0; k < length; k++) sum += double(x[k] - mean) * double(x[k] - mean);
    return sum;
}

class MVN : public Op {
public:
    explicit MVN(OpSpec spec)
        : Op(std::move(spec)),
          rows_(spec_.attributes.integer("rows")),
          row_(input(0)->count() / rows_),
          scales_variance_(spec_.attributes.flag("normalize_variance")),
          eps_(spec_.attributes.real("eps")),
          deviations_(rows_) {
        output(0, input(0)->layout);
        touch(Pass::forward, {input(0), outputs_[0]});
        may_overwrite(Pass::forward, input(0), outputs_[0]);
        if (!input_gradient(0) || !output_gradient(0)) return;
        touch(Pass::backward, {outputs_[0], outputs_[0]->diff, input(0)->diff});
        may_overwrite(Pass::backward, outputs_[0]->diff, input(0)->diff);
        may_overwrite(Pass::backward, outputs_[0], input(0)->diff);
    }

    void forward(const dnnl::stream&) override {
#pragma omp parallel for
        for (int64_t i = 0; i < rows_; i++) {
            const float* const x = input(0)->data() + i * row_;
            float* const y = outputs_[0]->data() + i * row_;
            const float mean = float(sum_of(x, row_) / double(row_));
            deviations_[i] = std::sqrt(sum_of_squares(x, mean, row_) / double(row_));
            const float factor = scales_variance_ ? float(1 / (deviations_[i] + eps_)) : 1;
            for (int64_t k = 0; k < row_; k++) y[k] = factor * (x[k] - mean);
        }
    }

    // With g behind the normalisation and d the deviation, averages over the row:
    //   dx = (g - mean(g) - y mean(g y) (d + eps) / d) / (d + eps)
    void backward(const dnnl::stream&) override {
#pragma omp parallel for
        for (int64_t i = 0; i < rows_; i++) {
            const float* const y = outputs_[0]->data() + i * row_;
            const float* const given = outputs_[0]->diff->data() + i * row_;
            float* const wanted = input(0)->diff->data() + i * row_;
            const double sum = sum_of(given, row_), product = sum_of_products(given, y, row_);
            const double spread = scales_variance_ ? deviations_[i] + eps_ : 1;
            const bool varies = scales_variance_ && deviations_[i] > 0;
            const float mean = float(sum / double(row_)), factor = float(1 / spread);
            const float share = varies ? float(product / double(row_) * spread / deviations_[i]) : 0;
            for (int64_t k = 0; k < row_; k++) wanted[k] = factor * (given[k] - mean - y[k] * share);
        }
    }

private:
    int64_t rows_, row_;
    bool scales_variance_;
    double eps_;
    std::vector<double> deviations_;
};

static const RegisterOp<MVN> registered("MVN");

}  // namespace
}  // namespace engine
