// What losses have in common that are a mean over the rows of their inputs.
#pragma once

#include "ops/common/onednn_util.h"

namespace engine {

// Fills `losses` with loss_of(i), which may run in any thread, and adds them up in their order, whatever the number of
// threads.
template <typename LossOf>
double sum_of_rows(std::vector<double>& losses, const LossOf& loss_of) {
#pragma omp parallel for
    for (int64_t i = 0; i < int64_t(losses.size()); i++) losses[i] = loss_of(i);
    double sum = 0;
    for (double loss : losses) sum += loss;
    return sum;
}

// inputs: all row-major, with the same first axis N; outputs: loss (); attributes: loss_weight, normalizer (what the
// sum over the rows is divided by; N by default).
class RowLoss : public Op {
protected:
    explicit RowLoss(OpSpec spec)
        : Op(std::move(spec)),
          rows_(input(0)->shape.at(0)),
          row_(input(0)->count() / rows_),
          normalizer_(spec_.attributes.real("normalizer", double(rows_))),
          losses_(rows_) {
        make_loss();
        for (const auto& each : spec_.inputs) touch(Pass::forward, each);
        if (!needs_backward()) return;
        for (const auto& each : spec_.inputs) {
            touch(Pass::backward, each);
            if (each->diff) touch(Pass::backward, each->diff);
        }
    }

    // The loss from those of the rows, loss_of(i), which may run in any thread.
    template <typename LossOf>
    void add_up(const LossOf& loss_of) {
        outputs_[0]->data()[0] = float(sum_of_rows(losses_, loss_of) / normalizer_);
    }

    // What a row's gradient is multiplied by.
    float gradient_scale() const { return float(loss_gradient() / normalizer_); }

    int64_t rows_, row_;  // N, and the elements of each row of the first input

private:
    double normalizer_;
    std::vector<double> losses_;
};

}  // namespace engine
