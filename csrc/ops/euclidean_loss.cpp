// Half the mean squared distance: sum (a - b)^2 / 2N. Either input may want a gradient.
// inputs: a, b (both row-major, same count, first axis N); attributes: loss_weight.
#include "onednn_util.h"

namespace engine {

class EuclideanLoss : public Op {
public:
    explicit EuclideanLoss(OpSpec spec) : Op(std::move(spec)) {
        loss_weight_ = spec_.attributes.real("loss_weight");
        rows_ = input(0)->shape.at(0);
        row_ = input(0)->count() / rows_;
        sums_.resize(rows_);
        output(0, plain_layout({}));
        touch(Pass::forward, {input(0), input(1), outputs_[0]});
        for (size_t i = 0; i < 2; i++) {
            if (!input_gradient(i)) continue;
            touch(Pass::backward, {input(0), input(1), input(i)->diff});
        }
    }

    void forward(const dnnl::stream&) override {
        const float* const a = input(0)->data();
        const float* const b = input(1)->data();
#pragma omp parallel for
        for (int64_t i = 0; i < rows_; i++) {
            double sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int64_t k = i * row_; k < (i + 1) * row_; k++) sum += double(a[k] - b[k]) * double(a[k] - b[k]);
            sums_[i] = sum;
        }
        double sum = 0;  // in the order of rows, whatever the number of threads
        for (double each : sums_) sum += each;
        outputs_[0]->data()[0] = float(sum / (2 * double(rows_)));
    }

    void backward(const dnnl::stream&) override {
        const float scale = float(loss_weight_ / double(rows_));
        if (input_gradient(0)) differentiate(scale, input(0)->diff->data());
        if (input_gradient(1)) differentiate(-scale, input(1)->diff->data());
    }

private:
    void differentiate(float scale, float* diff) const {
        const float* const a = input(0)->data();
        const float* const b = input(1)->data();
        const int64_t count = rows_ * row_;
#pragma omp parallel for simd
        for (int64_t k = 0; k < count; k++) diff[k] = scale * (a[k] - b[k]);
    }

    double loss_weight_;
    int64_t rows_, row_;
    std::vector<double> sums_;
};

static const RegisterOp<EuclideanLoss> registered("EuclideanLoss");

}  // namespace engine
