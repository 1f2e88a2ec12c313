// Sums over all trailing axes, of values, their magnitudes or their squares, times a coefficient.
// inputs: x, row-major; outputs: x's leading axes; attributes: term (value, magnitude, square), coefficient.
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "kernels/double_sums.h"
#include "kernels/vectorised.h"
#include "ops/common/elementwise.h"

namespace engine {
namespace {

enum class Term { value, magnitude, square };

Term term_of(const std::string& name) {
    if (name == "value") return Term::value;
    if (name == "magnitude") return Term::magnitude;
    if (name == "square") return Term::square;
    throw std::invalid_argument("no term '" + name + "'");
}

ENGINE_VECTORISED double sum_of_magnitudes(const float* x, int64_t length) {
    double total = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t i = 0; i < length; i++) total += std::abs(x[i]);
    return total;
}

double sum(Term term, const float* x, int64_t length) {
    if (term == Term::value) return sum_of(x, length);
    return term == Term::magnitude ? sum_of_magnitudes(x, length) : sum_of_products(x, x, length);
}

ENGINE_VECTORISED void spread(Term term, const float* x, float gradient, float* dx, int64_t length) {
    if (term == Term::value) {
        std::fill_n(dx, length, gradient);
    } else if (term == Term::magnitude) {
#pragma omp simd
        for (int64_t i = 0; i < length; i++) dx[i] = x[i] > 0 ? gradient : x[i] < 0 ? -gradient : 0.f;
    } else {
#pragma omp simd
        for (int64_t i = 0; i < length; i++) dx[i] = 2 * gradient * x[i];
    }
}

class Reduction : public Op {
public:
    explicit Reduction(OpSpec spec)
        : Op(std::move(spec)),
          term_(term_of(spec_.attributes.text("term"))),
          coefficient_(spec_.attributes.real("coefficient")),
          rows_(count_of(spec_.output_shapes[0])),
          row_(input(0)->count() / rows_),
          pieces_((row_ + chunk_size - 1) / chunk_size),
          sums_(rows_ * pieces_) {
        output(0, plain_layout(spec_.output_shapes[0]));
        touch(Pass::forward, {input(0), outputs_[0]});
        if (!input_gradient(0) || !output_gradient(0)) return;
        touch(Pass::backward, {outputs_[0]->diff, input(0)->diff});
        if (term_ == Term::value) return;
        touch(Pass::backward, input(0));
        may_overwrite(Pass::backward, input(0), input(0)->diff);
    }

    // Sums of pieces first, then these in their order: the same for any number of threads.
    void forward(const dnnl::stream&) override {
        const float* const x = input(0)->data();
        each_piece([&](int64_t piece, int64_t begin, int64_t length) { sums_[piece] = sum(term_, x + begin, length); });
        float* const y = outputs_[0]->data();
        for (int64_t row = 0; row < rows_; row++) {
            double total = 0;
            for (int64_t i = 0; i < pieces_; i++) total += sums_[row * pieces_ + i];
            y[row] = float(coefficient_ * total);
        }
    }

    void backward(const dnnl::stream&) override {
        const float *const x = input(0)->data(), *const given = outputs_[0]->diff->data();
        float* const wanted = input(0)->diff->data();
        each_piece([&](int64_t piece, int64_t begin, int64_t length) {
            spread(term_, x + begin, float(coefficient_ * given[piece / pieces_]), wanted + begin, length);
        });
    }

private:
    // work(piece, begin, length), in parallel.
    template <typename Work>
    void each_piece(const Work& work) const {
#pragma omp parallel for schedule(static) if (rows_ * row_ > chunk_size)
        for (int64_t piece = 0; piece < rows_ * pieces_; piece++) {
            const int64_t begin = piece % pieces_ * chunk_size;
            work(piece, piece / pieces_ * row_ + begin, std::min(chunk_size, row_ - begin));
        }
    }

    Term term_;
    double coefficient_;
    int64_t rows_, row_, pieces_;
    std::vector<double> sums_;
};

static const RegisterOp<Reduction> registered("Reduction");

}  // namespace
}  // namespace engine
