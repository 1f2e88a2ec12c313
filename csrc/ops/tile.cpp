// Copies of a blob one after the other along an axis.
// inputs: x, row-major; attributes: axis, tiles (how many).
#include <algorithm>

#include "ops/common/elementwise.h"

namespace engine {
namespace {

class Tile : public Op {
public:
    explicit Tile(OpSpec spec) : Op(std::move(spec)), tiles_(spec_.attributes.integer("tiles")) {
        const Dims& shape = input(0)->shape;
        outer_ = count_of({shape.begin(), shape.begin() + spec_.attributes.integer("axis")});
        run_ = input(0)->count() / outer_;
        output(0, plain_layout(spec_.output_shapes[0]));
        touch(Pass::forward, {input(0), outputs_[0]});
        if (input_gradient(0) && output_gradient(0)) touch(Pass::backward, {outputs_[0]->diff, input(0)->diff});
    }

    void forward(const dnnl::stream&) override {
        const float* const x = input(0)->data();
        float* const y = outputs_[0]->data();
#pragma omp parallel for schedule(static) if (outer_ * tiles_ * run_ > chunk_size)
        for (int64_t i = 0; i < outer_ * tiles_; i++) std::copy_n(x + i / tiles_ * run_, run_, y + i * run_);
    }

    void backward(const dnnl::stream&) override {
        const float* const given = outputs_[0]->diff->data();
        float* const wanted = input(0)->diff->data();
#pragma omp parallel for schedule(static) if (outer_ * tiles_ * run_ > chunk_size)
        for (int64_t i = 0; i < outer_; i++) {
            const float* from = given + i * tiles_ * run_;
            float* const into = wanted + i * run_;
            std::copy_n(from, run_, into);
            for (int64_t tile = 1; tile < tiles_; tile++) {
                from += run_;
#pragma omp simd
                for (int64_t j = 0; j < run_; j++) into[j] += from[j];
            }
        }
    }

private:
    int64_t tiles_, outer_, run_;
};

static const RegisterOp<Tile> registered("Tile");

}  // namespace
}  // namespace engine
