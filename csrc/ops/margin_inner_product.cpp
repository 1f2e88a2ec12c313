// Computes scores of classes in which a sample's own class must lead by an angle: x w, but for the own class
//   (|x| |w| psi(cos) + lambda x w) / (1 + lambda), psi(cos t) = (-1)^k cos(margin t) - 2 k, t in [k pi / margin, ...].
// Without unit_weights (L-Softmax, Liu et al. 2016, arXiv 1612.02295) the gradients are the formula's. With it
// (A-Softmax, Liu et al. 2017, arXiv 1704.08063) the rows of w are scaled to length 1, in place, before each forward;
// w's gradient is that of x w alone; the part of x's gradient that comes from psi is a w + b x, with the formula's a
// and b scaled so that a^2 + b^2 = 1, as SphereFace trains.
// inputs: x (M, K), labels (M), both float32, row-major; outputs: (M, N), optionally lambda (1); attributes: margin (1
// to 4), unit_weights, base, gamma, power, lambda_min, iteration: at step s, from 0 on, lambda = max(lambda_min, base
// (1 + gamma (iteration + s + 1))^-power).
// params: w (N, K).
#include <algorithm>
#include <cmath>

#include "kernels/add_row.h"
#include "ops/common/labels.h"
#include "ops/common/onednn_util.h"

namespace engine {
namespace {

// Returns the length of a vector. It is summed one element after the other, so that all ranks divide weights by the
// same number, whatever the width of their vectors.
float length_of(const float* x, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += double(x[i]) * double(x[i]);
    return float(std::sqrt(sum));
}

float sign(float x) { return float(x > 0) - float(x < 0); }

// psi and its derivative.
struct Psi {
    float value, slope;
};

Psi psi(int64_t margin, float cosine) {
    const float c = cosine, square = c * c, s = sign(c);
    if (margin == 2) return {2 * s * square - 1, 4 * s * c};
    if (margin == 3) {
        const float half = sign(std::abs(c) - 0.5f);
        return {half * (4 * square - 3) * c + s * (1 + half) - 2, half * (12 * square - 3)};
    }
    if (margin == 4) {
        const float both = s * sign(2 * square - 1);
        return {both * (8 * square * (square - 1) + 1) + 2 * s + both - 3, both * (32 * square - 16) * c};
    }
    return {c, 1};
}

class MarginInnerProduct : public Op {
public:
    explicit MarginInnerProduct(OpSpec spec)
        : Op(std::move(spec)),
          margin_(spec_.attributes.integer("margin")),
          unit_weights_(spec_.attributes.flag("unit_weights")),
          samples_(spec_.output_shapes.at(0).at(0)),
          classes_(spec_.output_shapes.at(0).at(1)),
          size_(input(0)->count() / samples_),
          labels_(spec_, samples_, classes_),
          own_(samples_) {
        plain_param(0);
        output(0, plain_layout({samples_, classes_}));
        touch(Pass::forward, {input(0), input(1), outputs_[0]});
        if (outputs_.size() > 1) touch(Pass::forward, output(1, plain_layout(spec_.output_shapes[1])));
        const Layout x = plain_layout({samples_, size_}), y = plain_layout({samples_, classes_});
        add_product(input(0)->as(x), x, weights(true), turned(classes_, size_), outputs_[0]->memory, y, forward_calls_);
        if (needs_backward() && output_gradient(0)) build_backward(x, y);
    }

    void forward(const dnnl::stream& stream) override {
        labels_.read(input(1)->data());
        float* const w = param(0)->data();
        if (unit_weights_) {
#pragma omp parallel for
            for (int64_t j = 0; j < classes_; j++) {
                const float length = length_of(w + j * size_, size_);
                if (length > 0)
                    for (int64_t k = 0; k < size_; k++) w[j * size_ + k] /= length;
            }
        }
        Op::forward(stream);
        const double lambda = this->lambda();
        if (outputs_.size() > 1) outputs_[1]->data()[0] = float(lambda);
#pragma omp parallel for
        for (int64_t i = 0; i < samples_; i++) {
            float& score = outputs_[0]->data()[i * classes_ + labels_[i]];
            const float x = length_of(input(0)->data() + i * size_, size_);
            const float length = length_of(w + labels_[i] * size_, size_), both = x * length;
            const float cosine = both > 0 ? std::clamp(score / both, -1.f, 1.f) : 0;
            const Psi own = psi(margin_, cosine);
            own_[i] = {x, length, own.slope, own.value - cosine * own.slope};
            if (margin_ > 1) score = float((double(both) * own.value + lambda * score) / (1 + lambda));
        }
    }

    void backward(const dnnl::stream& stream) override {
        if (touched(Pass::backward).empty()) return;
        if (margin_ == 1) return Op::backward(stream);
        const float* const given = outputs_[0]->diff->data();
        float* const changed = address<float>(changed_);
        const float lambda = float(this->lambda()), share = 1 / (1 + lambda);
#pragma omp parallel for
        for (int64_t i = 0; i < samples_; i++) {
            const Own& own = own_[i];
            std::copy_n(given + i * classes_, classes_, changed + i * classes_);
            changed[i * classes_ + labels_[i]] *= share * (own.of_other / norm(own) + lambda);
        }
        Op::backward(stream);
        for (int64_t i = 0; i < samples_; i++) {
            const Own& own = own_[i];
            const float factor = share * given[i * classes_ + labels_[i]] * own.of_itself;
            const float* const x = input(0)->data() + i * size_;
            const float* const w = param(0)->data() + labels_[i] * size_;
            if (input_gradient(0) && own.x > 0)
                add_scaled(factor * own.w / own.x / norm(own), x, input(0)->diff->data() + i * size_, size_);
            if (param_gradient(0) && !unit_weights_ && own.w > 0)
                add_scaled(factor * own.x / own.w, w, param(0)->diff->data() + labels_[i] * size_, size_);
        }
    }

private:
    // For a sample and its own class: the lengths of x and w; the derivative of |x| |w| psi with respect to x is
    // of_other w + of_itself |w| / |x| x.
    struct Own {
        float x, w, of_other, of_itself;
    };

    // Returns the divisor of the gradient of x that comes from psi.
    float norm(const Own& own) const {
        if (!unit_weights_) return 1;
        const float of_itself = own.x > 0 ? own.of_itself / own.x : 0;
        const float length = std::hypot(own.of_other, of_itself);
        return length > 0 ? length : 1;
    }

    double lambda() const {
        const Attributes& attributes = spec_.attributes;
        const double iteration = attributes.real("iteration") + double(spec_.counter->step) + 1;
        const double base =
            attributes.real("base") * std::pow(1 + attributes.real("gamma") * iteration, -attributes.real("power"));
        return std::max(base, attributes.real("lambda_min"));
    }

    void build_backward(const Layout& x, const Layout& y) {
        const bool of_x = input_gradient(0), of_w = param_gradient(0);
        fresh_scratch();
        const memory turned_changes = scratch(turned_y());
        fresh_scratch();
        changed_ = margin_ > 1 ? scratch(y) : outputs_[0]->diff->memory;  // scratch: the same bytes
        touch(Pass::backward, {input(0), outputs_[0]->diff});
        if (of_x) {
            const Layout w = plain_layout({classes_, size_});
            add_product(changed_, y, weights(false), w, input(0)->diff->as(x), x, backward_calls_);
            touch(Pass::backward, input(0)->diff);
        }
        if (!of_w) return;
        const Layout w = plain_layout({classes_, size_});
        const memory from = unit_weights_ || margin_ == 1 ? outputs_[0]->diff->as(turned_y()) : turned_changes;
        const Target target = writing_gradient(0, w);
        add_product(from, turned_y(), input(0)->as(x), x, target.memory, w, backward_calls_);
        finish(target, backward_calls_);
    }

    Layout turned(int64_t rows, int64_t columns) const {
        return Layout({columns, rows}, memory::data_type::f32, Dims{1, columns});
    }
    Layout turned_y() const { return turned(samples_, classes_); }

    memory weights(bool transposed) const {
        const TensorPtr& w = param(0);
        return w->as(transposed ? turned(classes_, size_) : plain_layout({classes_, size_}));
    }

    // Adds the call for c = a b.
    void add_product(const memory& a, const Layout& a_layout, const memory& b, const Layout& b_layout, const memory& c,
                     const Layout& c_layout, Calls& calls) {
        const dnnl::matmul::primitive_desc pd(cpu(), a_layout, b_layout, c_layout, user_scratchpad());
        calls.push_back({dnnl::matmul(pd),
                         {{DNNL_ARG_SRC, a},
                          {DNNL_ARG_WEIGHTS, b},
                          {DNNL_ARG_DST, c},
                          {DNNL_ARG_SCRATCHPAD, scratch(pd.scratchpad_desc())}}});
        implementation_ = pd.impl_info_str();
    }

    int64_t margin_;
    bool unit_weights_;
    int64_t samples_, classes_, size_;
    Labels labels_;
    std::vector<Own> own_;
    memory changed_;  // the top's gradient, where that of own classes is multiplied by the factor of w
};

static const RegisterOp<MarginInnerProduct> registered("MarginInnerProduct");

}  // namespace
}  // namespace engine
