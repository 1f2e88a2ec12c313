// Repeats a blob along an axis.
// inputs: x, float32 or bf16, in any layout that is rows along the axis (rows_along() in parts.h); outputs: laid out as
// x; attributes: axis, tiles (how many copies).
#include <algorithm>
#include <stdexcept>

#include "kernels/chunks.h"
#include "kernels/sixteen.h"
#include "ops/common/parts.h"

namespace engine {
namespace {

// Sums `tiles` rows that lie one after the other.
template <typename T>
void sum_tiles(const T* rows, int64_t length, int64_t tiles, T* into) {
    in_sixteens(length, [=](auto piece, int64_t at) ENGINE_BODY {
        typename decltype(piece)::Vector sum, term;
        piece.read(rows + at, sum);
        for (int64_t tile = 1; tile < tiles; tile++) {
            piece.read(rows + tile * length + at, term);
            sum += term;
        }
        piece.write(sum, into + at);
    });
}

class Tile : public Op {
public:
    explicit Tile(OpSpec spec) : Op(std::move(spec)), tiles_(spec_.attributes.integer("tiles")) {
        const Layout& layout = input(0)->layout;
        const int64_t axis = spec_.attributes.integer("axis");
        const Layout top = layout_like(layout, spec_.output_shapes[0], layout.get_data_type());
        const auto rows = rows_along(layout, axis), into = rows_along(top, axis);
        if (!rows || !into || rows->count != into->count || rows->length * tiles_ != into->length)
            throw std::invalid_argument("no kernel for a blob laid out as " + layout_name(layout));
        outer_ = rows->count;
        run_ = rows->length;
        output(0, top);
        touch(Pass::forward, {input(0), outputs_[0]});
        if (input_gradient(0) && output_gradient(0)) touch(Pass::backward, {outputs_[0]->diff, input(0)->diff});
    }

    void forward(const dnnl::stream&) override { input(0)->is_bf16() ? copy_rows<bf16>() : copy_rows<float>(); }
    void backward(const dnnl::stream&) override { input(0)->is_bf16() ? sum_rows<bf16>() : sum_rows<float>(); }

private:
    template <typename T>
    void copy_rows() const {
        const T* const x = address<T>(input(0));
        T* const y = address<T>(outputs_[0]);
#pragma omp parallel for schedule(static) if (outer_ * tiles_ * run_ > chunk_size)
        for (int64_t i = 0; i < outer_ * tiles_; i++) std::copy_n(x + i / tiles_ * run_, run_, y + i * run_);
    }

    template <typename T>
    void sum_rows() const {
        const T* const given = address<T>(outputs_[0]->diff);
        T* const wanted = address<T>(input(0)->diff);
#pragma omp parallel for schedule(static) if (outer_ * tiles_ * run_ > chunk_size)
        for (int64_t i = 0; i < outer_; i++) sum_tiles(given + i * tiles_ * run_, run_, tiles_, wanted + i * run_);
    }

    int64_t tiles_, outer_ = 0, run_ = 0;
};

static const RegisterOp<Tile> registered("Tile");

}  // namespace
}  // namespace engine
