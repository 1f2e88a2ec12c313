// The base of losses that are a mean over the rows of their inputs.
#pragma once

#include "kernels/chunks.h"
#include "ops/common/onednn_util.h"

namespace engine {

// inputs: all float32, row-major, with the same first axis N; outputs: loss (); attributes: loss_weight, normalizer
// (the divisor of the sum over the rows; N by default).
class RowLoss : public Op {
protected:
    explicit RowLoss(OpSpec spec)
        : Op(std::move(spec)),
          rows_(input(0)->shape.at(0)),
          row_(input(0)->count() / rows_),
          normalizer_(spec_.attributes.real("normalizer", double(rows_))) {
        make_loss();
        for (const auto& each : spec_.inputs) touch(Pass::forward, each);
        if (!needs_backward()) return;
        for (const auto& each : spec_.inputs) {
            touch(Pass::backward, each);
            if (each->diff) touch(Pass::backward, each->diff);
        }
    }

    // Sets the loss from those of the rows. loss_of(i) returns that of row i, in any thread.
    template <typename LossOf>
    void add_up(const LossOf& loss_of) {
        write(sum_of_strips({rows_, 1, 1}, losses_, [&](int64_t i, int64_t, int64_t) { return loss_of(i); }));
    }

    // Sets the loss from those of the elements. loss_of(begin, end) returns the sum of elements [begin, end) of the
    // input, in any thread.
    template <typename LossOf>
    void add_up_elements(const LossOf& loss_of) {
        const auto loss = [&](int64_t, int64_t begin, int64_t length) { return loss_of(begin, begin + length); };
        write(sum_of_strips({1, 1, rows_ * row_}, losses_, loss));
    }

    // Returns the factor of each row's gradient.
    float gradient_scale() const { return float(loss_gradient() / normalizer_); }

    int64_t rows_, row_;  // N, and the elements of each row of the first input

private:
    void write(double sum) { outputs_[0]->data()[0] = float(sum / normalizer_); }

    double normalizer_;
    std::vector<double> losses_;
};

}  // namespace engine
