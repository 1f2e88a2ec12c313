// One minus the overlap of probabilities and truth (Milletari et al. 2016, arXiv 1606.04797), the mean over samples and
// classes of 1 - (2 sum p g + e) / (sum p^2 + sum g^2 + e). inputs: p (N, C, ...), and g: as many targets, which are
// one class then, or one label for each position, which stands for 1 of its own class and 0 of others; class 0, the
// background, does not count. attributes: loss_weight, labels (whether the second input holds them).
#include <algorithm>
#include <memory>

#include "ops/common/labels.h"
#include "ops/common/row_loss.h"

namespace engine {
namespace {

class DiceLoss : public RowLoss {
public:
    explicit DiceLoss(OpSpec spec) : RowLoss(std::move(spec)) {
        const int64_t channels = input(0)->shape.at(1);
        if (spec_.attributes.flag("labels")) labels_ = std::make_unique<Labels>(spec_, input(1)->count(), channels);
        first_ = labels_ ? 1 : 0;
        classes_ = labels_ ? channels - 1 : 1;
        size_ = labels_ ? row_ / channels : row_;
        products_.resize(rows_ * classes_);
        squares_.resize(rows_ * classes_);
    }

    void forward(const dnnl::stream&) override {
        if (labels_) labels_->read(input(1)->data());
        add_up([this](int64_t n) {
            double overlap = 0;
            for (int64_t c = 0; c < classes_; c++) overlap += measure(n, c);
            return 1 - overlap / double(classes_);
        });
    }

    void backward(const dnnl::stream&) override {
        const float scale = gradient_scale() / float(classes_);
#pragma omp parallel for
        for (int64_t n = 0; n < rows_; n++) {
            float* const wanted = input(0)->diff->data() + n * row_;
            std::fill_n(wanted, first_ * size_, 0.f);
            for (int64_t c = 0; c < classes_; c++) {
                const double overlap = products_[n * classes_ + c], all = squares_[n * classes_ + c];
                const float of_truth = float(-2 / all) * scale, of_p = float(2 * overlap / (all * all)) * scale;
                for (int64_t s = 0; s < size_; s++) {
                    const int64_t at = (first_ + c) * size_ + s;
                    wanted[at] = of_truth * truth(n, c, s) + of_p * input(0)->data()[n * row_ + at];
                }
            }
        }
    }

private:
    static constexpr double least = 1e-5;  // e: an empty class that is found to be empty overlaps

    float truth(int64_t n, int64_t c, int64_t s) const {
        if (labels_) return (*labels_)[n * size_ + s] == first_ + c ? 1.f : 0.f;
        return input(1)->data()[n * size_ + s];
    }

    double measure(int64_t n, int64_t c) {
        const float* const p = input(0)->data() + n * row_ + (first_ + c) * size_;
        double product = 0, squares = 0;
        for (int64_t s = 0; s < size_; s++) {
            const double g = truth(n, c, s);
            product += p[s] * g;
            squares += double(p[s]) * p[s] + g * g;
        }
        products_[n * classes_ + c] = 2 * product + least;
        squares_[n * classes_ + c] = squares + least;
        return (2 * product + least) / (squares + least);
    }

    std::unique_ptr<Labels> labels_;
    int64_t first_, classes_, size_;          // the first class that counts, how many do, and the positions of each
    std::vector<double> products_, squares_;  // numerators and denominators, (N, classes)
};

static const RegisterOp<DiceLoss> registered("DiceLoss");

}  // namespace
}  // namespace engine
