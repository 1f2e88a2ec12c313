// Scales the channels of every position, or with across_spatial every sample, to one length: y = x scale / sqrt(sum of
// x^2 + eps).
// inputs: x (N, C, ...), float32 or bf16, any layout with rows of channels; outputs: as x; attributes: across_spatial,
// eps.
// params: scale, () or (C).
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kernels/bf16.h"
#include "kernels/chunks.h"
#include "kernels/double_sums.h"
#include "kernels/vectorised.h"
#include "ops/common/channel_layout.h"
#include "ops/common/onednn_util.h"

namespace engine {
namespace {

// Neighbouring positions, `step` elements apart, of `lanes` channels that lie side by side.
struct Piece {
    int64_t positions, step, lanes;
    bool is_run() const { return lanes == 1 && step == 1; }
};

// Calls body(lanes), with the usual number of lanes as a constant.
template <typename Body>
ENGINE_INLINE void with_lanes(int64_t lanes, const Body& body) {
    if (lanes == 16) return body(std::integral_constant<int64_t, 16>());
    body(lanes);
}

// Call function(element, position, lane) for each element: of one channel, and of several.
template <typename Function>
ENGINE_VECTORISED void each_of_run(int64_t positions, const Function& function) {
#pragma omp simd
    for (int64_t i = 0; i < positions; i++) function(i, i, 0);
}

template <typename Function>
ENGINE_VECTORISED void each_of_rows(const Piece& piece, const Function& function) {
    with_lanes(piece.lanes, [&](auto lanes) ENGINE_BODY {
        for (int64_t i = 0; i < piece.positions; i++)
#pragma omp simd
            for (int64_t lane = 0; lane < lanes; lane++) function(i * piece.step + lane, i, lane);
    });
}

// Add term(element, position, lane) to sums[position].
template <typename Term>
ENGINE_VECTORISED void add_run(int64_t positions, const Term& term, float* sums) {
#pragma omp simd
    for (int64_t i = 0; i < positions; i++) sums[i] += term(i, i, 0);
}

template <typename Term>
ENGINE_VECTORISED void add_rows(const Piece& piece, const Term& term, float* sums) {
    with_lanes(piece.lanes, [&](auto lanes) ENGINE_BODY {
        for (int64_t i = 0; i < piece.positions; i++) {
            float sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int64_t lane = 0; lane < lanes; lane++) sum += term(i * piece.step + lane, i, lane);
            sums[i] += sum;
        }
    });
}

// Return, or set for each lane, the sum of term(element, position, lane) over the positions.
template <typename Term>
ENGINE_VECTORISED double sum_of_run(int64_t positions, const Term term) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < positions; i++) sum += term(i, i, 0);
    return sum;
}

template <typename Term>
ENGINE_VECTORISED void sum_rows(const Piece& piece, const Term& term, double* sums) {
    std::fill_n(sums, piece.lanes, 0.0);
    with_lanes(piece.lanes, [&](auto lanes) ENGINE_BODY {
        for (int64_t i = 0; i < piece.positions; i++)
#pragma omp simd
            for (int64_t lane = 0; lane < lanes; lane++) sums[lane] += term(i * piece.step + lane, i, lane);
    });
}

ENGINE_VECTORISED void inverse_roots(float* squares, float eps, int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) squares[i] = 1 / std::sqrt(squares[i] + eps);
}

ENGINE_VECTORISED void multiply_by_cubes(float* products, const float* inverses, int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) products[i] *= inverses[i] * inverses[i] * inverses[i];
}

class Normalize : public Op {
public:
    explicit Normalize(OpSpec spec)
        : Op(std::move(spec)),
          across_(spec_.attributes.flag("across_spatial")),
          eps_(float(spec_.attributes.real("eps"))) {
        const Layout& layout = input(0)->layout;
        rows_ = known_rows(layout);
        plain_param(0);
        scales_.resize(size_t(rows_.padded_channels()));
        if (across_) sums_of_strips_.resize(size_t(strips().count()));
        inverses_ = workspace("lengths", plain_layout({rows_.outer, rows_.inner}));
        output(0, layout);
        touch(Pass::forward, {input(0), outputs_[0], inverses_});
        if (!output_gradient(0) || !needs_backward()) return;
        products_ = scratch(plain_layout({rows_.outer, rows_.inner}));
        sums_ = scratch(plain_layout({rows_.outer, rows_.padded_channels()}, memory::data_type::f64));
        touch(Pass::backward, {input(0), outputs_[0]->diff, inverses_});
        if (!input_gradient(0)) return;
        touch(Pass::backward, input(0)->diff);
        may_overwrite(Pass::backward, outputs_[0]->diff, input(0)->diff);
    }

    void forward(const dnnl::stream&) override {
        load_scales();
        input(0)->is_bf16() ? values<bf16>() : values<float>();
    }

    // With g the gradient of y and l the length; sums for dx are over the elements that have one length:
    //   dscale = sum(g x / l), dx = scale g / l - x sum(scale g x) / l^3
    void backward(const dnnl::stream&) override {
        load_scales();
        input(0)->is_bf16() ? gradients<bf16>() : gradients<float>();
    }

private:
    void load_scales() {
        const float* const scale = param(0)->data();
        for (int64_t c = 0; c < rows_.channels; c++) scales_[size_t(c)] = scale[is_shared() ? 0 : c];
    }
    bool is_shared() const { return param(0)->count() == 1; }

    Strips strips() const { return {rows_.outer, rows_.padded_channels(), rows_.inner}; }

    template <typename T>
    void values() {
        const T* const x = address<T>(input(0));
        T* const y = address<T>(outputs_[0]);
        const auto square = [x](int64_t begin, const float*) {
            return [x = x + begin](int64_t at, int64_t, int64_t) ENGINE_BODY { return number(x[at]) * number(x[at]); };
        };
        with_sums(inverses_->data(), square, [=](int64_t n, int64_t begin, int64_t width) {
            float* const inverses = inverses_->data() + n * rows_.inner + begin;
            inverse_roots(inverses, eps_, width);
            each_block(n, begin, width, [=](const Piece& piece, int64_t first, const float* scale) {
                each(piece, [=, from = x + first, to = y + first](int64_t at, int64_t i, int64_t lane)
                                ENGINE_BODY { store(scale[lane] * number(from[at]) * inverses[i], to[at]); });
            });
        });
    }

    template <typename T>
    void gradients() {
        const T *const x = address<T>(input(0)), *const g = address<T>(outputs_[0]->diff);
        if (param_gradient(0)) differentiate_scale(x, g);
        if (!input_gradient(0)) return;
        T* const wanted = address<T>(input(0)->diff);
        const auto product = [x, g](int64_t begin, const float* scale) {
            return [=, x = x + begin, g = g + begin](int64_t at, int64_t, int64_t lane)
                       ENGINE_BODY { return scale[lane] * number(g[at]) * number(x[at]); };
        };
        float* const all_products = address<float>(products_);
        with_sums(all_products, product, [=](int64_t n, int64_t begin, int64_t width) {
            const float* const inverses = inverses_->data() + n * rows_.inner + begin;
            float* const products = all_products + n * rows_.inner + begin;
            multiply_by_cubes(products, inverses, width);
            each_block(n, begin, width, [=](const Piece& piece, int64_t first, const float* scale) {
                each(piece, [=, x = x + first, g = g + first, to = wanted + first](int64_t at, int64_t i,
                                                                                   int64_t lane) ENGINE_BODY {
                    store(scale[lane] * number(g[at]) * inverses[i] - number(x[at]) * products[i], to[at]);
                });
            });
        });
    }

    template <typename Function>
    static void each(const Piece& piece, const Function& function) {
        piece.is_run() ? each_of_run(piece.positions, function) : each_of_rows(piece, function);
    }

    // Calls work(piece, its first element, its scales) for all channels of `width` positions.
    template <typename Work>
    void each_block(int64_t n, int64_t begin, int64_t width, const Work& work) const {
        for (int64_t block = 0; block < rows_.blocks(); block++)
            work(Piece{width, rows_.inner_stride, rows_.lanes}, rows_.offset(n, block) + begin * rows_.inner_stride,
                 &scales_[size_t(block * rows_.lanes)]);
    }

    // Sets into[position] to the sum of a term over the channels, with across_spatial also over all positions of the
    // sample. Then calls use(sample, first position, positions) for each strip. term_of(first element of a piece, its
    // scales) returns the function that is the term.
    template <typename TermOf, typename Use>
    void with_sums(float* into, const TermOf& term_of, const Use& use) {
        strips().each([&](int64_t strip, int64_t n, int64_t begin, int64_t width) {
            float* const sums = into + n * rows_.inner + begin;
            std::fill_n(sums, width, 0.f);
            each_block(n, begin, width, [&](const Piece& piece, int64_t first, const float* scale) {
                piece.is_run() ? add_run(width, term_of(first, scale), sums)
                               : add_rows(piece, term_of(first, scale), sums);
            });
            if (!across_) return use(n, begin, width);
            sums_of_strips_[size_t(strip)] = sum_of(sums, width);
        });
        if (!across_) return;
        const int64_t each = strips().of_sample();
        for (int64_t n = 0; n < rows_.outer; n++)  // a sample's first strip gets the sum of them all
            for (int64_t i = 1; i < each; i++)
                sums_of_strips_[size_t(n * each)] += sums_of_strips_[size_t(n * each + i)];
        strips().each([&](int64_t, int64_t n, int64_t begin, int64_t width) {
            std::fill_n(into + n * rows_.inner + begin, width, float(sums_of_strips_[size_t(n * each)]));
            use(n, begin, width);
        });
    }

    template <typename T>
    void differentiate_scale(const T* x, const T* g) const {
        double* const sums = address<double>(sums_);
        const int64_t blocks = rows_.blocks(), padded = rows_.padded_channels();
#pragma omp parallel for schedule(static)
        for (int64_t panel = 0; panel < rows_.panels(); panel++) {
            const int64_t n = panel / blocks, first = rows_.offset(n, panel % blocks);
            const float* const inverses = inverses_->data() + n * rows_.inner;
            const auto quotient = [=, x = x + first, g = g + first](int64_t at, int64_t i, int64_t)
                                      ENGINE_BODY { return number(g[at]) * number(x[at]) * inverses[i]; };
            double* const into = sums + panel * rows_.lanes;
            const Piece piece{rows_.inner, rows_.inner_stride, rows_.lanes};
            if (piece.is_run())
                *into = sum_of_run(rows_.inner, quotient);
            else
                sum_rows(piece, quotient, into);
        }
        const TensorPtr& diff = param(0)->diff;
        if (!diff->accumulate) std::fill_n(diff->data(), diff->count(), 0.f);
        for (int64_t c = 0; c < rows_.channels; c++) {
            double sum = 0;
            for (int64_t n = 0; n < rows_.outer; n++) sum += sums[n * padded + c];
            diff->data()[is_shared() ? 0 : c] += float(sum);
        }
    }

    bool across_;
    float eps_;
    ChannelRows rows_{};
    std::vector<float> scales_;  // of padded channels
    TensorPtr inverses_;         // 1 / length, for each position
    memory products_, sums_;
    std::vector<double> sums_of_strips_;
};

static const RegisterOp<Normalize> registered("Normalize");

}  // namespace
}  // namespace engine
