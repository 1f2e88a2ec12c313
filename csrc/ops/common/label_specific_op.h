// The base of ops that apply a function to each sample's score of its own class; all other scores are multiplied by one
// factor (happynear's fork).
// inputs: x (N, ...), labels (N), both float32, row-major; outputs: y (as x), optionally the numbers that the function
// uses at this step; attributes: iteration (that of step 0), and those that each op names.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/common/labels.h"

namespace engine {

class LabelSpecificOp : public Op {
public:
    void forward(const dnnl::stream&) override {
        labels_.read(input(1)->data());
        begin_step();
        for (size_t i = 0; i < numbers_.size() && outputs_.size() > 1; i++) outputs_[1]->data()[i] = numbers_[i];
        const float* const x = input(0)->data();
        float* const y = outputs_[0]->data();
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < rows_; i++) {
            const float own = x[i * row_ + labels_[i]];
            for (int64_t k = i * row_; k < (i + 1) * row_; k++) y[k] = factor_ * x[k];
            y[i * row_ + labels_[i]] = value(own);
            slopes_[i] = slope(own);
        }
    }

    void backward(const dnnl::stream&) override {
        const float* const given = outputs_[0]->diff->data();
        float* const wanted = input(0)->diff->data();
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < rows_; i++) {
            const float own = given[i * row_ + labels_[i]] * slopes_[i];
            for (int64_t k = i * row_; k < (i + 1) * row_; k++) wanted[k] = factor_ * given[k];
            wanted[i * row_ + labels_[i]] = own;
        }
    }

protected:
    explicit LabelSpecificOp(OpSpec spec, size_t numbers)
        : Op(std::move(spec)),
          numbers_(numbers),
          rows_(input(0)->shape.at(0)),
          row_(input(0)->count() / rows_),
          labels_(spec_, rows_, row_),
          slopes_(rows_) {
        output(0, input(0)->layout);
        if (outputs_.size() > 1) touch(Pass::forward, output(1, plain_layout(spec_.output_shapes[1])));
        touch(Pass::forward, {input(0), input(1), outputs_[0]});
        may_overwrite(Pass::forward, input(0), outputs_[0]);
        if (!input_gradient(0) || !output_gradient(0)) return;
        touch(Pass::backward, {outputs_[0]->diff, input(0)->diff});
        may_overwrite(Pass::backward, outputs_[0]->diff, input(0)->diff);
    }

    // Sets numbers_, on which value() and slope(), its derivative, depend.
    virtual void begin_step() = 0;
    virtual float value(float x) const = 0;
    virtual float slope(float x) const = 0;

    double real(const char* name) const { return spec_.attributes.real(name); }
    // Returns (1 + gamma (iteration + step + ahead))^power; the arguments name the attributes that are gamma and power.
    double growth(const char* gamma, const char* power, int64_t ahead = 0) const {
        const double iteration = real("iteration") + double(spec_.counter->step) + double(ahead);
        return std::pow(1 + real(gamma) * iteration, real(power));
    }

    std::vector<float> numbers_;
    float factor_ = 1;  // of the scores of all other classes

private:
    int64_t rows_, row_;
    Labels labels_;
    std::vector<float> slopes_;
};

}  // namespace engine
