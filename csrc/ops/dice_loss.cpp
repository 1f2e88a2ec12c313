// Computes one minus the overlap of probabilities p and truth g (Milletari et al. 2016, arXiv 1606.04797): the mean
// over samples and classes of 1 - (2 sum p g + e) / (sum p^2 + sum g^2 + e).
// inputs: p (N, C, ...), and either g, as many targets, which count as one class, or with `labels` a label for each
// position, whose g is 1 for its own class and 0 for others; class 0, the background, then does not count; outputs,
// further attributes: see row_loss.h; attributes: labels.
#include <algorithm>
#include <memory>

#include "kernels/vectorised.h"
#include "ops/common/labels.h"
#include "ops/common/row_loss.h"

namespace engine {
namespace {

// The numerator and the denominator of an overlap.
struct Overlap {
    double common, all;
};

ENGINE_VECTORISED Overlap measure(const float* p, const float* truth, int64_t length) {
    double product = 0, squares = 0;
#pragma omp simd reduction(+ : product, squares)
    for (int64_t s = 0; s < length; s++) {
        product += double(p[s]) * double(truth[s]);
        squares += double(p[s]) * double(p[s]) + double(truth[s]) * double(truth[s]);
    }
    return {2 * product, squares};
}

ENGINE_VECTORISED void differentiate(const float* p, float of_p, const float* truth, float of_truth, float* diff,
                                     int64_t length) {
#pragma omp simd
    for (int64_t s = 0; s < length; s++) diff[s] = of_truth * truth[s] + of_p * p[s];
}

class DiceLoss : public RowLoss {
public:
    explicit DiceLoss(OpSpec spec) : RowLoss(std::move(spec)) {
        const int64_t channels = input(0)->shape.at(1);
        if (spec_.attributes.flag("labels")) labels_ = std::make_unique<Labels>(spec_, input(1)->count(), channels);
        first_ = labels_ ? 1 : 0;
        classes_ = labels_ ? channels - 1 : 1;
        size_ = labels_ ? row_ / channels : row_;
        overlaps_.resize(size_t(rows_ * classes_));
        of_strips_.resize(size_t(strips().count()));
    }

    void forward(const dnnl::stream&) override {
        if (labels_) labels_->read(input(1)->data());
        const float* const p = input(0)->data();
        strips().each([=, this](int64_t strip, int64_t plane, int64_t begin, int64_t width) {
            float buffer[Strips::widest];
            of_strips_[strip] = measure(p + start(plane) + begin, truth(plane, begin, width, buffer), width);
        });
        add_up([this](int64_t n) {
            double sum = 0;
            for (int64_t plane = n * classes_; plane < (n + 1) * classes_; plane++) {
                overlaps_[plane] = of_plane(plane);
                sum += overlaps_[plane].common / overlaps_[plane].all;
            }
            return 1 - sum / double(classes_);
        });
    }

    void backward(const dnnl::stream&) override {
        const float scale = gradient_scale() / float(classes_);
        const float* const p = input(0)->data();
        float* const diff = input(0)->diff->data();
        for (int64_t n = 0; n < rows_; n++) std::fill_n(diff + n * row_, first_ * size_, 0.f);
        strips().each([=, this](int64_t, int64_t plane, int64_t begin, int64_t width) {
            const auto [common, all] = overlaps_[plane];
            const float of_p = float(2 * common / (all * all)) * scale, of_truth = float(-2 / all) * scale;
            float buffer[Strips::widest];
            const int64_t at = start(plane) + begin;
            differentiate(p + at, of_p, truth(plane, begin, width, buffer), of_truth, diff + at, width);
        });
    }

private:
    static constexpr double least = 1e-5;  // e: an empty class that is found to be empty has the overlap 1

    // Planes are the classes of a sample that count, one sample after the other.
    Strips strips() const { return {rows_ * classes_, 1, size_}; }
    int64_t start(int64_t plane) const { return plane / classes_ * row_ + (first_ + plane % classes_) * size_; }

    // Returns g at `width` positions of a plane: in the second input, or made of labels in the buffer.
    const float* truth(int64_t plane, int64_t begin, int64_t width, float* buffer) const {
        if (!labels_) return input(1)->data() + plane * size_ + begin;
        const int64_t at = plane / classes_ * size_ + begin, label = first_ + plane % classes_;
        for (int64_t s = 0; s < width; s++) buffer[s] = (*labels_)[at + s] == label ? 1.f : 0.f;
        return buffer;
    }

    Overlap of_plane(int64_t plane) const {
        const int64_t each = strips().of_sample();
        Overlap sum{least, least};
        for (int64_t i = plane * each; i < (plane + 1) * each; i++) {
            sum.common += of_strips_[i].common;
            sum.all += of_strips_[i].all;
        }
        return sum;
    }

    std::unique_ptr<Labels> labels_;
    int64_t first_, classes_, size_;  // the first class that counts, how many count, and the positions of each
    std::vector<Overlap> of_strips_, overlaps_;  // overlaps_: of planes
};

static const RegisterOp<DiceLoss> registered("DiceLoss");

}  // namespace
}  // namespace engine
