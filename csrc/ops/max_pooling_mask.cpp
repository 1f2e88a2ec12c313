// Computes the maximum over windows of a plane, and a mask with its place in the plane, counted row by row: that of the
// first, if several are equal. NaN is passed over, as in Caffe. Windows are clipped to the plane.
// inputs: x (N, C, H, W), float32, any layout with rows of channels; outputs: y (N, C, h, w) and its mask, laid out as
// x; attributes: kernel, stride, pad (two each).
#include <algorithm>
#include <cfloat>

#include "kernels/max_windows.h"
#include "kernels/vectorised.h"
#include "kernels/whole.h"
#include "ops/common/channel_layout.h"
#include "ops/common/parts.h"

namespace engine {
namespace {

// A window's extent along one axis, clipped.
struct Extent {
    int64_t begin, end;
};

using Axis = MaxWindows::Axis;

Extent extent(const Axis& axis, int64_t i) { return {axis.start(i) + axis.begin(i), axis.start(i) + axis.end(i)}; }

constexpr float nowhere = -1;  // in the mask, as in Caffe, of a window without a number in the plane

// Computes `lanes` neighbouring channels of one place of the top. step: the distance between neighbours in the plane.
ENGINE_VECTORISED void pool_lanes(const float* x, float* y, float* mask, int64_t lanes, int64_t step, int64_t width,
                                  Extent rows, Extent columns) {
    std::fill_n(y, lanes, -FLT_MAX);
    std::fill_n(mask, lanes, nowhere);
    for (int64_t row = rows.begin; row < rows.end; row++)
        for (int64_t column = columns.begin; column < columns.end; column++) {
            const int64_t at = row * width + column;
            const float* const from = x + at * step;
            const float place = float(at);
#pragma omp simd
            for (int64_t lane = 0; lane < lanes; lane++) {
                const bool better = from[lane] > y[lane];
                y[lane] = better ? from[lane] : y[lane];
                mask[lane] = better ? place : mask[lane];
            }
        }
}

// Computes a row of the top from a row-major plane: one offset in the windows after the other, for all windows at once.
ENGINE_VECTORISED void pool_row(const float* x, float* y, float* mask, const Axis& axis, Extent rows) {
    const Axis a = axis;
    std::fill_n(y, a.pooled, -FLT_MAX);
    std::fill_n(mask, a.pooled, nowhere);
    for (int64_t row = rows.begin; row < rows.end; row++)
        for (int64_t offset = 0; offset < a.kernel; offset++) {
            // [begin, end): the windows in which this offset lies within the plane.
            const int64_t shift = offset - a.pad;
            const int64_t begin = shift < 0 ? (-shift + a.stride - 1) / a.stride : 0;
            const int64_t end = shift < a.size ? std::min(a.pooled, (a.size - 1 - shift) / a.stride + 1) : 0;
            const float* const from = x + row * a.size + shift;
            const int64_t stride = a.stride, base = row * a.size + shift;
#pragma omp simd
            for (int64_t i = begin; i < end; i++) {
                const float value = from[i * stride];
                const float place = float(int32_t(base + i * stride));  // with 64 bits the loop would be scalar
                const bool better = value > y[i];
                y[i] = better ? value : y[i];
                mask[i] = better ? place : mask[i];
            }
        }
}

class MaxPoolingMask : public Op {
public:
    explicit MaxPoolingMask(OpSpec spec) : Op(std::move(spec)), height_(axis(0)), width_(axis(1)) {
        const Layout top = layout_like(input(0)->layout, spec_.output_shapes[0], memory::data_type::f32);
        const auto rows = rows_of_both(input(0)->layout, top);
        x_ = rows.bottom;
        y_ = rows.top;
        output(0, top);
        output(1, top);
        touch(Pass::forward, {input(0), outputs_[0], outputs_[1]});
        if (!input_gradient(0) || !output_gradient(0)) return;
        touch(Pass::backward, {outputs_[1], outputs_[0]->diff, input(0)->diff});
    }

    void forward(const dnnl::stream&) override {
        const int64_t blocks = x_.blocks(), step = y_.inner_stride;
#pragma omp parallel for collapse(2) schedule(static)
        for (int64_t panel = 0; panel < x_.panels(); panel++)
            for (int64_t row = 0; row < height_.pooled; row++) {
                const int64_t n = panel / blocks, block = panel % blocks, to = y_.offset(n, block);
                const float* const x = input(0)->data() + x_.offset(n, block);
                float* const y = outputs_[0]->data() + to + row * width_.pooled * step;
                float* const mask = outputs_[1]->data() + to + row * width_.pooled * step;
                const Extent rows = extent(height_, row);
                if (x_.lanes == 1) {
                    pool_row(x, y, mask, width_, rows);
                    continue;
                }
                const int64_t real = std::min(x_.lanes, x_.channels - block * x_.lanes);
                for (int64_t i = 0; i < width_.pooled; i++) {
                    pool_lanes(x, y + i * step, mask + i * step, x_.lanes, x_.inner_stride, width_.size, rows,
                               extent(width_, i));
                    // Readers of a block expect zeros behind its channels.
                    std::fill_n(y + i * step + real, x_.lanes - real, 0.f);
                    std::fill_n(mask + i * step + real, x_.lanes - real, 0.f);
                }
            }
    }

    void backward(const dnnl::stream&) override {
        if (touched(Pass::backward).empty()) return;
        const int64_t blocks = x_.blocks(), places = height_.pooled * width_.pooled;
#pragma omp parallel for schedule(static)
        for (int64_t panel = 0; panel < x_.panels(); panel++) {
            const int64_t n = panel / blocks, block = panel % blocks, from = y_.offset(n, block);
            const float *const given = outputs_[0]->diff->data() + from, *const mask = outputs_[1]->data() + from;
            float* const wanted = input(0)->diff->data() + x_.offset(n, block);
            for (int64_t at = 0; at < x_.inner; at++) std::fill_n(wanted + at * x_.inner_stride, x_.lanes, 0.f);
            for (int64_t at = 0; at < places; at++)
                for (int64_t lane = 0; lane < x_.lanes; lane++) {
                    const int64_t i = at * y_.inner_stride + lane;
                    if (mask[i] >= 0) wanted[whole(mask[i]) * x_.inner_stride + lane] += given[i];
                }
        }
    }

private:
    Axis axis(size_t i) const {
        const Attributes& attributes = spec_.attributes;
        return {input(0)->shape.at(i + 2), spec_.output_shapes[0].at(i + 2), attributes.integers("kernel")[i],
                attributes.integers("stride")[i], attributes.integers("pad")[i]};
    }

    Axis height_, width_;
    ChannelRows x_{}, y_{};
};

static const RegisterOp<MaxPoolingMask> registered("MaxPoolingMask");

}  // namespace
}  // namespace engine
