// Adds random numbers of mean `center`, another one for each element of each sample at each step, counted like
// Dropout's choices (kernels/dropout_mask.h). They are normal with standard deviation s or, without `gaussian`, uniform
// in [center - s, center + s); each step draws s from `spreads`, for all samples. The gradient passes as it is.
// inputs: x (N, ...), float32, any layout with rows of channels; outputs: as x; attributes: center, spreads, gaussian.
#include <algorithm>
#include <cmath>

#include "kernels/dropout_mask.h"
#include "kernels/vectorised.h"
#include "op.h"
#include "ops/common/channel_layout.h"

namespace engine {
namespace {

// Neighbouring elements of a sample, from `at` in memory on. Their places in the sample are first, first + apart, ...
struct Piece {
    int64_t at, length;
    uint32_t first, apart;
};

// y = x + center + spread times uniform numbers in [-1, 1).
ENGINE_VECTORISED void add_even(const DropoutMask& choice, const Piece& piece, float center, float spread,
                                const float* x, float* y) {
    const DropoutMask local = choice;
    const uint32_t first = piece.first, apart = piece.apart;
    x += piece.at;
    y += piece.at;
#pragma omp simd
    for (int64_t k = 0; k < piece.length; k++)
        y[k] = x[k] + center + spread * (2 * local.uniform(first + uint32_t(k) * apart) - 1);
}

// y = x + center + spread times normal numbers, each made of two uniform ones (Box and Muller 1958).
ENGINE_VECTORISED void add_normal(const DropoutMask& choice, const DropoutMask& angle, const Piece& piece, float center,
                                  float spread, const float* x, float* y) {
    const DropoutMask local = choice, turn = angle;
    const uint32_t first = piece.first, apart = piece.apart;
    x += piece.at;
    y += piece.at;
#pragma omp simd
    for (int64_t k = 0; k < piece.length; k++) {
        const uint32_t element = first + uint32_t(k) * apart;
        const float far = sqrtf(-2 * logf(1 - local.uniform(element)));
        y[k] = x[k] + center + spread * far * cosf(float(2 * M_PI) * turn.uniform(element));
    }
}

class Noise : public Op {
public:
    explicit Noise(OpSpec spec)
        : Op(std::move(spec)),
          center_(float(spec_.attributes.real("center"))),
          spreads_(spec_.attributes.reals("spreads")),
          gaussian_(spec_.attributes.flag("gaussian")),
          choices_(spec_.name),
          angles_(spec_.name + " angles") {
        const TensorPtr& x = input(0);
        rows_ = known_rows(x->layout);
        touch(Pass::forward, {x, output(0, x->layout)});
        may_overwrite(Pass::forward, x, outputs_[0]);
        if (!input_gradient(0) || !output_gradient(0)) return;
        touch(Pass::backward, {outputs_[0]->diff, x->diff});
        may_overwrite(Pass::backward, outputs_[0]->diff, x->diff);
    }

    void forward(const dnnl::stream&) override {
        const float* const x = input(0)->data();
        float* const y = outputs_[0]->data();
        const Counter& counter = *spec_.counter;
        const float spread = spread_of_step();
        const int64_t blocks = rows_.blocks(), lanes = rows_.lanes, inner = rows_.inner;
        const int64_t pieces = lanes == 1 ? 1 : inner, length = lanes == 1 ? inner : lanes;
        const auto apart = uint32_t(lanes == 1 ? 1 : inner);
#pragma omp parallel for schedule(static) if (!rows_.small())
        for (int64_t panel = 0; panel < rows_.panels(); panel++) {
            const int64_t n = panel / blocks, block = panel % blocks, at = rows_.offset(n, block);
            const uint64_t sample = counter.row(n, input(0)->shape[0]);
            const DropoutMask choice = choices_.of(counter.seed, counter.step, sample);
            const DropoutMask angle = angles_.of(counter.seed, counter.step, sample);
            const auto first = uint32_t(block * lanes * inner);
            for (int64_t i = 0; i < pieces; i++) {
                const Piece piece{at + i * rows_.inner_stride, length, first + uint32_t(i), apart};
                gaussian_ ? add_normal(choice, angle, piece, center_, spread, x, y)
                          : add_even(choice, piece, center_, spread, x, y);
            }
        }
        clear_padding(rows_, sizeof(float), y);
    }

    void backward(const dnnl::stream&) override {
        if (touched(Pass::backward).empty()) return;
        const float* const given = outputs_[0]->diff->data();
        float* const wanted = input(0)->diff->data();
        if (given == wanted) return;
        const int64_t blocks = rows_.blocks(), lanes = rows_.lanes, inner = rows_.inner;
        const int64_t pieces = lanes == 1 ? 1 : inner, length = lanes == 1 ? inner : lanes;
#pragma omp parallel for schedule(static) if (!rows_.small())
        for (int64_t panel = 0; panel < rows_.panels(); panel++)
            for (int64_t i = 0; i < pieces; i++) {
                const int64_t at = rows_.offset(panel / blocks, panel % blocks) + i * rows_.inner_stride;
                std::copy_n(given + at, length, wanted + at);
            }
    }

private:
    float spread_of_step() const {
        const Counter& counter = *spec_.counter;
        const uint32_t bits = choices_.of(~counter.seed, counter.step, 0).bits(0);
        return float(spreads_[bits % spreads_.size()]);
    }

    float center_;
    std::vector<double> spreads_;
    bool gaussian_;
    DropoutMasks choices_, angles_;
    ChannelRows rows_{};
};

static const RegisterOp<Noise> registered("Noise");

}  // namespace
}  // namespace engine
