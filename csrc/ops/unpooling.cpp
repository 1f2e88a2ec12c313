// Reverses a maximum over windows: each value goes to the place in the top's plane that the mask names; all other
// places are zero. Throws std::runtime_error for a mask that names a place outside of the plane.
// inputs: x (N, C, h, w), float32, any layout with rows of channels; mask (as x, in any layout); outputs: (N, C, H, W),
// laid out as x.
#include <algorithm>
#include <stdexcept>

#include "kernels/whole.h"
#include "ops/common/channel_layout.h"
#include "ops/common/parts.h"

namespace engine {
namespace {

class Unpooling : public Op {
public:
    explicit Unpooling(OpSpec spec) : Op(std::move(spec)) {
        const Layout layout = input(0)->layout;
        const Layout top = layout_like(layout, spec_.output_shapes[0], memory::data_type::f32);
        const auto rows = rows_of_both(input(0)->layout, top);
        x_ = rows.bottom;
        y_ = rows.top;
        output(0, top);
        mask_ = reading(input(1), layout, forward_calls_);
        touch(Pass::forward, {input(0), input(1), outputs_[0]});
        if (!input_gradient(0) || !output_gradient(0)) return;
        fresh_scratch();
        backward_mask_ = reading(input(1), layout, backward_calls_);
        touch(Pass::backward, {input(1), outputs_[0]->diff, input(0)->diff});
    }

    void forward(const dnnl::stream& stream) override {
        run(forward_calls_, stream);
        const float* const mask = address<float>(mask_);
        const int64_t blocks = x_.blocks();
        bool fits = true;
#pragma omp parallel for schedule(static) reduction(&& : fits)
        for (int64_t panel = 0; panel < x_.panels(); panel++) {
            const int64_t n = panel / blocks, block = panel % blocks, from = x_.offset(n, block);
            const float* const x = input(0)->data() + from;
            float* const y = outputs_[0]->data() + y_.offset(n, block);
            for (int64_t at = 0; at < y_.inner; at++) std::fill_n(y + at * y_.inner_stride, y_.lanes, 0.f);
            for (int64_t at = 0; at < x_.inner; at++)
                for (int64_t lane = 0; lane < x_.lanes; lane++) {
                    const int64_t i = at * x_.inner_stride + lane;
                    const float place = mask[from + i];
                    if (place >= 0 && place < float(y_.inner))
                        y[whole(place) * y_.inner_stride + lane] = x[i];
                    else
                        fits = false;
                }
        }
        if (!fits) fail(mask);
    }

    void backward(const dnnl::stream& stream) override {
        run(backward_calls_, stream);
        const float* const mask = address<float>(backward_mask_);
        const int64_t blocks = x_.blocks();
#pragma omp parallel for schedule(static)
        for (int64_t panel = 0; panel < x_.panels(); panel++) {
            const int64_t n = panel / blocks, block = panel % blocks, from = x_.offset(n, block);
            const float* const given = outputs_[0]->diff->data() + y_.offset(n, block);
            float* const wanted = input(0)->diff->data() + from;
            for (int64_t at = 0; at < x_.inner; at++)
                for (int64_t lane = 0; lane < x_.lanes; lane++) {
                    const int64_t i = at * x_.inner_stride + lane;
                    wanted[i] = given[whole(mask[from + i]) * y_.inner_stride + lane];
                }
        }
    }

private:
    [[noreturn]] void fail(const float* mask) const {
        const int64_t count = int64_t(input(0)->layout.get_size()) / 4;
        const Dims& top = spec_.output_shapes[0];
        const float* const wrong =
            std::find_if(mask, mask + count, [this](float place) { return !(place >= 0 && place < float(y_.inner)); });
        throw std::runtime_error(
            "layer '" + spec_.name + "': the mask names place " + number_text(*wrong) + " of a plane of " +
            std::to_string(top[2]) + " x " + std::to_string(top[3]) +
            "; expected the mask of a Pooling whose bottom has the size of this layer's top, with a number "
            "in every window");
    }

    ChannelRows x_{}, y_{};
    memory mask_, backward_mask_;  // in the layout of x
};

static const RegisterOp<Unpooling> registered("Unpooling");

}  // namespace
}  // namespace engine
