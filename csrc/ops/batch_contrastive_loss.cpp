// Computes a loss over all pairs of a batch, by which distances of samples of one class get small and others large. It
// is the mean over the N (N - 1) / 2 pairs of positive_weight max(d - positive_margin, 0) for like pairs and
// negative_weight max(negative_margin - d, 0) for unlike ones; with `max_only`, the sum of the largest term of each
// kind. d is read above the matrix's diagonal. Derivatives are those of happynear's fork: they are divided by N, or by
// 2 with `max_only`, and not by the number of pairs.
// inputs: distances (N, N), labels (N); outputs: loss (), optionally the mean distances (2): like, unlike; attributes:
// loss_weight, positive_margin, negative_margin, positive_weight, negative_weight, max_only.
#include <algorithm>

#include "ops/common/row_loss.h"

namespace engine {
namespace {

class BatchContrastiveLoss : public RowLoss {
public:
    explicit BatchContrastiveLoss(OpSpec spec)
        : RowLoss(std::move(spec)), max_only_(spec_.attributes.flag("max_only")) {
        const Attributes& attributes = spec_.attributes;
        margins_[0] = attributes.real("negative_margin");
        margins_[1] = attributes.real("positive_margin");
        weights_[0] = attributes.real("negative_weight");
        weights_[1] = attributes.real("positive_weight");
        if (outputs_.size() > 1) touch(Pass::forward, output(1, plain_layout(spec_.output_shapes[1])));
    }

    void forward(const dnnl::stream&) override {
        double loss = 0, sums[2] = {}, counts[2] = {}, largest[2] = {};
        worst_[0] = worst_[1] = -1;
        each_pair([&](int64_t at, bool like) {
            const double d = input(0)->data()[at], gap = like ? d - margins_[1] : margins_[0] - d;
            sums[like] += d;
            counts[like]++;
            if (!(gap > 0)) return;
            loss += weights_[like] * gap;
            if (worst_[like] < 0 || gap > largest[like]) {
                largest[like] = gap;
                worst_[like] = at;
            }
        });
        const double pairs = double(rows_) * double(rows_ - 1) / 2;
        outputs_[0]->data()[0] = float(max_only_   ? weights_[0] * largest[0] + weights_[1] * largest[1]
                                       : pairs > 0 ? loss / pairs
                                                   : 0);
        if (outputs_.size() < 2) return;
        for (const int like : {1, 0})
            outputs_[1]->data()[1 - like] = float(counts[like] > 0 ? sums[like] / counts[like] : 0);
    }

    void backward(const dnnl::stream&) override {
        if (!input_gradient(0)) return;
        float* const diff = input(0)->diff->data();
        std::fill_n(diff, input(0)->diff->count(), 0.f);
        const double scale = max_only_ ? loss_gradient() / 2 : double(gradient_scale());
        each_pair([&](int64_t at, bool like) {
            const double d = input(0)->data()[at], gap = like ? d - margins_[1] : margins_[0] - d;
            if (max_only_ ? at == worst_[like] : gap > 0) diff[at] = float(scale * (like ? weights_[1] : -weights_[0]));
        });
    }

private:
    // Calls work(index of the distance, whether the two samples are of one class) for all pairs.
    template <typename Work>
    void each_pair(const Work& work) const {
        const float* const labels = input(1)->data();
        for (int64_t i = 0; i < rows_; i++)
            for (int64_t j = i + 1; j < rows_; j++) work(i * rows_ + j, labels[i] == labels[j]);
    }

    bool max_only_;
    double margins_[2], weights_[2];  // of unlike pairs, of like ones
    int64_t worst_[2] = {-1, -1};     // the pairs with the largest terms; -1: no term is above 0
};

static const RegisterOp<BatchContrastiveLoss> registered("BatchContrastiveLoss");

}  // namespace
}  // namespace engine
