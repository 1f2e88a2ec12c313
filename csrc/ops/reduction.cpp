// Sums values, their magnitudes or their squares over all trailing axes, and multiplies the sums by a coefficient.
// inputs: x, float32 or bf16, row-major, or, if the top keeps at most axis 0, in any layout whose samples lie one after
// the other; outputs: x's leading axes, float32; attributes: term (value, magnitude, square), coefficient.
#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <type_traits>

#include "kernels/bf16.h"
#include "kernels/chunks.h"
#include "kernels/vectorised.h"
#include "op.h"
#include "ops/common/channel_layout.h"

namespace engine {
namespace {

enum class Term { value, magnitude, square };

Term term_of(const std::string& name) {
    if (name == "value") return Term::value;
    if (name == "magnitude") return Term::magnitude;
    if (name == "square") return Term::square;
    throw std::invalid_argument("no term '" + name + "'");
}

// Returns the sum of at most chunk_size terms, made in several vectors that do not wait for each other: in double, or
// in float32 for bf16, which has fewer digits.
template <typename T, typename TermOf>
ENGINE_INLINE double sum_of_terms(const T* x, int64_t length, const TermOf& term_of) {
    using Sum = std::conditional_t<std::is_same_v<T, bf16>, float, double>;
    constexpr int64_t together = 256 / sizeof(Sum);  // eight registers of AVX2, which has sixteen
    Sum sums[together] = {};
    int64_t i = 0;
    for (; i + together <= length; i += together) {
#pragma omp simd
        for (int64_t j = 0; j < together; j++) sums[j] += term_of(Sum(number(x[i + j])));
    }
    for (int64_t j = 0; i < length; i++, j++) sums[j] += term_of(Sum(number(x[i])));
    double total = 0;
    for (int64_t j = 0; j < together; j++) total += double(sums[j]);
    return total;
}

template <typename T>
ENGINE_VECTORISED double sum(Term term, const T* x, int64_t length) {
    if (term == Term::value) return sum_of_terms(x, length, [](auto value) ENGINE_BODY { return value; });
    if (term == Term::square) return sum_of_terms(x, length, [](auto value) ENGINE_BODY { return value * value; });
    return sum_of_terms(x, length, [](auto value) ENGINE_BODY { return std::abs(value); });
}

template <typename T>
ENGINE_VECTORISED void spread(Term term, const T* x, float gradient, T* dx, int64_t length) {
    if (term == Term::value) {
        T rounded;
        store(gradient, rounded);
        std::fill_n(dx, length, rounded);
    } else if (term == Term::magnitude) {
#pragma omp simd
        for (int64_t i = 0; i < length; i++) {
            const float value = number(x[i]);
            store(value > 0 ? gradient : value < 0 ? -gradient : 0.f, dx[i]);
        }
    } else {
#pragma omp simd
        for (int64_t i = 0; i < length; i++) store(2 * gradient * number(x[i]), dx[i]);
    }
}

class Reduction : public Op {
public:
    explicit Reduction(OpSpec spec)
        : Op(std::move(spec)),
          term_(term_of(spec_.attributes.text("term"))),
          coefficient_(spec_.attributes.real("coefficient")),
          rows_(count_of(spec_.output_shapes[0])),
          row_(int64_t(input(0)->layout.get_size()) / element_bytes() / rows_),
          pieces_((row_ + chunk_size - 1) / chunk_size),
          sums_(rows_ * pieces_) {
        output(0, plain_layout(spec_.output_shapes[0]));
        touch(Pass::forward, {input(0), outputs_[0]});
        if (!input_gradient(0) || !output_gradient(0)) return;
        padded_ = padded_rows(input(0)->layout);
        touch(Pass::backward, {outputs_[0]->diff, input(0)->diff});
        if (term_ == Term::value) return;
        touch(Pass::backward, input(0));
        may_overwrite(Pass::backward, input(0), input(0)->diff);
    }

    void forward(const dnnl::stream&) override { input(0)->is_bf16() ? add_up<bf16>() : add_up<float>(); }

    void backward(const dnnl::stream&) override {
        input(0)->is_bf16() ? spread_gradient<bf16>() : spread_gradient<float>();
        if (padded_) clear_padding(*padded_, element_bytes(), input(0)->diff->buffer->address());
    }

private:
    int64_t element_bytes() const { return input(0)->is_bf16() ? 2 : 4; }

    // Sums pieces first and then their sums, in an order that does not depend on the number of threads.
    template <typename T>
    void add_up() {
        const T* const x = address<T>(input(0));
        each_piece([&](int64_t piece, int64_t begin, int64_t length) { sums_[piece] = sum(term_, x + begin, length); });
        float* const y = outputs_[0]->data();
        for (int64_t row = 0; row < rows_; row++) {
            double total = 0;
            for (int64_t i = 0; i < pieces_; i++) total += sums_[row * pieces_ + i];
            y[row] = float(coefficient_ * total);
        }
    }

    template <typename T>
    void spread_gradient() const {
        const T* const x = address<T>(input(0));
        const float* const given = outputs_[0]->diff->data();
        T* const wanted = address<T>(input(0)->diff);
        each_piece([&](int64_t piece, int64_t begin, int64_t length) {
            spread(term_, x + begin, float(coefficient_ * given[piece / pieces_]), wanted + begin, length);
        });
    }

    // Calls work(piece, begin, length) for all pieces, in parallel.
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
    std::optional<ChannelRows> padded_;
};

static const RegisterOp<Reduction> registered("Reduction");

}  // namespace
}  // namespace engine
