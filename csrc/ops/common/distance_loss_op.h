// The base of losses by which a sample's distance from the center of its own class gets small, and those from all other
// centers large (happynear's fork, whose gradients these are).
// inputs: distances (N, D), labels (N), optionally a weight of each sample's gradient (N), all float32, row-major;
// outputs: loss (), optionally the mean distances (2): own, others; attributes: loss_weight, and those that each op
// names.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/common/labels.h"
#include "ops/common/row_loss.h"

namespace engine {

class DistanceLossOp : public RowLoss {
public:
    void forward(const dnnl::stream&) override {
        labels_.read(input(1)->data());
        add_up([this](int64_t i) {
            Means means;
            const double loss = row(input(0)->data() + i * row_, labels_[i], slopes_->data() + i * row_, means);
            means_[i] = means;
            return loss;
        });
        if (outputs_.size() < 2) return;
        Means all;
        for (const Means& each : means_) {
            all.own += each.own;
            all.others += each.others;
        }
        const double others = double(rows_) * double(std::max<int64_t>(row_ - 1, 1));
        outputs_[1]->data()[0] = float(all.own / double(rows_));
        outputs_[1]->data()[1] = float(all.others / others);
    }

    void backward(const dnnl::stream&) override {
        if (!input_gradient(0)) return;
        const float* const weights = spec_.inputs.size() > 2 ? input(2)->data() : nullptr;
        double sum = 0;
        for (int64_t i = 0; i < rows_ && weights && relative_weights_; i++) sum += weights[i];
        const float of_others = other_factor();
#pragma omp parallel for
        for (int64_t i = 0; i < rows_; i++) {
            float scale = gradient_scale();
            if (weights) scale *= relative_weights_ ? float(weights[i] * double(rows_) / sum) : weights[i];
            const float* const slopes = slopes_->data() + i * row_;
            float* const diff = input(0)->diff->data() + i * row_;
            for (int64_t j = 0; j < row_; j++) diff[j] = scale * slopes[j] * (j == labels_[i] ? 1.f : of_others);
        }
    }

protected:
    struct Means {
        double own = 0, others = 0;
    };

    explicit DistanceLossOp(OpSpec spec) : RowLoss(std::move(spec)), labels_(spec_, rows_, row_), means_(rows_) {
        slopes_ = workspace("slopes", plain_layout({rows_, row_}));
        touch(Pass::forward, slopes_);
        if (outputs_.size() > 1) touch(Pass::forward, output(1, plain_layout(spec_.output_shapes[1])));
        if (needs_backward()) touch(Pass::backward, slopes_);
    }

    // The attributes of a loss with two margins. The distance from the own center counts beyond own_margin, up to
    // `outlier` more; distances from others count below other_margin.
    struct TwoMargins {
        explicit TwoMargins(const Attributes& attributes)
            : own_margin(attributes.real("positive_margin")),
              other_margin(attributes.real("negative_margin")),
              own_weight(attributes.real("positive_weight")),
              other_weight(attributes.real("negative_weight")),
              outlier(attributes.real("positive_outlier_thresh")) {}

        double own(float distance) const { return std::min(std::max(distance - own_margin, 0.), outlier); }
        bool own_slopes(float distance) const { return distance > own_margin && distance < outlier; }

        double own_margin, other_margin, own_weight, other_weight, outlier;
    };

    // Returns the loss of a sample. Sets its derivatives with respect to the distances, D slopes, and what it adds to
    // the means.
    virtual double row(const float* distances, int64_t label, float* slopes, Means& means) const = 0;
    // Returns the factor of the slopes of all distances but the own one.
    virtual float other_factor() const { return 1; }

    double real(const char* name) const { return spec_.attributes.real(name); }
    bool flag(const char* name) const { return spec_.attributes.flag(name); }

    bool relative_weights_ = false;  // whether the samples' weights are divided by their mean
    Labels labels_;
    TensorPtr slopes_;

private:
    std::vector<Means> means_;
};

}  // namespace engine
