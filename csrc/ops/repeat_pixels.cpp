// Repeats every pixel as a rectangle.
// inputs: x (N, C, H, W), float32 or bf16, any layout with rows of channels; outputs: (N, C, H * height, W * width),
// laid out as x; attributes: height, width (of the rectangle).
#include <algorithm>
#include <cstring>

#include "kernels/sixteen.h"
#include "ops/common/channel_layout.h"
#include "ops/common/parts.h"

namespace engine {
namespace {

// Rows of pixels of `lanes` numbers each.
struct Rows {
    int64_t length, lanes, bottom, top;  // length: pixels of the bottom's row; bottom, top: from a pixel to the next
    int64_t height, width;               // of the rectangles
};

// Calls body(number), with usual numbers as constants.
template <int64_t usual, int64_t other, typename Body>
ENGINE_INLINE void with_constant(int64_t number, const Body& body) {
    if (number == usual) return body(std::integral_constant<int64_t, usual>());
    if (number == other) return body(std::integral_constant<int64_t, other>());
    body(number);
}

// Writes a row of the top, from one of the bottom.
template <typename T>
ENGINE_VECTORISED void widen(const Rows& rows, const T* x, T* y) {
    const int64_t length = rows.length, bottom = rows.bottom, top = rows.top;
    if (rows.lanes == 1) {
        with_constant<2, 4>(rows.width, [&](auto width) ENGINE_BODY {
            for (int64_t i = 0; i < length; i++)
                for (int64_t copy = 0; copy < width; copy++) y[i * width + copy] = x[i];
        });
        return;
    }
    with_constant<2, 4>(rows.width, [&](auto width) ENGINE_BODY {
        with_constant<16, 8>(rows.lanes, [&](auto lanes) ENGINE_BODY {
            for (int64_t i = 0; i < length; i++)
                for (int64_t copy = 0; copy < width; copy++)
                    std::memcpy(y + (i * width + copy) * top, x + i * bottom, size_t(lanes) * sizeof(T));
        });
    });
}

// Writes a row of the bottom, for one lane: the sums of the rectangles in rows of the top, which begin `step` apart.
template <typename T>
ENGINE_VECTORISED void narrow_run(const Rows& rows, const T* y, int64_t step, T* x) {
    const int64_t length = rows.length, height = rows.height;
    with_constant<2, 4>(rows.width, [&](auto width) ENGINE_BODY {
#pragma omp simd
        for (int64_t i = 0; i < length; i++) {
            float sum = 0;
            for (int64_t row = 0; row < height; row++)
                for (int64_t copy = 0; copy < width; copy++) sum += number(y[row * step + i * width + copy]);
            store(sum, x[i]);
        }
    });
}

// Does the same for several lanes.
template <typename T>
void narrow_pixels(const Rows& rows, const T* y, int64_t step, T* x) {
    constexpr int64_t strip = 64;  // pixels; rows of the top are read one after the other, as memory is fastest
    in_sixteens(rows.lanes, [=](auto piece, int64_t lane) ENGINE_BODY {
        using Vector = typename decltype(piece)::Vector;
        for (int64_t begin = 0; begin < rows.length; begin += strip) {
            const int64_t count = std::min(strip, rows.length - begin);
            Vector sums[strip], term;
            for (int64_t i = 0; i < count; i++) sums[i] = Vector{};
            for (int64_t row = 0; row < rows.height; row++) {
                const T* from = y + row * step + begin * rows.width * rows.top + lane;
                for (int64_t i = 0; i < count; i++) {
                    Vector sum = sums[i];
                    for (int64_t copy = 0; copy < rows.width; copy++, from += rows.top) {
                        piece.read(from, term);
                        sum += term;
                    }
                    sums[i] = sum;
                }
            }
            for (int64_t i = 0; i < count; i++) piece.write(sums[i], x + (begin + i) * rows.bottom + lane);
        }
    });
}

class RepeatPixels : public Op {
public:
    explicit RepeatPixels(OpSpec spec)
        : Op(std::move(spec)),
          height_(spec_.attributes.integer("height")),
          width_(spec_.attributes.integer("width")),
          pixel_rows_(input(0)->shape.at(2)),
          columns_(input(0)->shape.at(3)) {
        const Layout top = layout_like(input(0)->layout, spec_.output_shapes[0], input(0)->layout.get_data_type());
        const auto rows = rows_of_both(input(0)->layout, top);
        x_ = rows.bottom;
        y_ = rows.top;
        output(0, top);
        touch(Pass::forward, {input(0), outputs_[0]});
        if (input_gradient(0) && output_gradient(0)) touch(Pass::backward, {outputs_[0]->diff, input(0)->diff});
    }

    void forward(const dnnl::stream&) override { input(0)->is_bf16() ? repeat<bf16>() : repeat<float>(); }
    void backward(const dnnl::stream&) override { input(0)->is_bf16() ? add_up<bf16>() : add_up<float>(); }

private:
    Rows rows() const { return {columns_, x_.lanes, x_.inner_stride, y_.inner_stride, height_, width_}; }
    int64_t top_row() const { return columns_ * width_ * y_.inner_stride; }

    template <typename T>
    void repeat() const {
        each_row([this](int64_t bottom, int64_t top) {
            T* const y = address<T>(outputs_[0]) + top;
            for (int64_t copy = 0; copy < height_; copy++)
                widen(rows(), address<T>(input(0)) + bottom, y + copy * top_row());
        });
    }

    template <typename T>
    void add_up() const {
        each_row([this](int64_t bottom, int64_t top) {
            const T* const y = address<T>(outputs_[0]->diff) + top;
            T* const x = address<T>(input(0)->diff) + bottom;
            x_.lanes == 1 ? narrow_run(rows(), y, top_row(), x) : narrow_pixels(rows(), y, top_row(), x);
        });
    }

    // Calls work(offset of a row of the bottom, offset of the first of its rows in the top) for all rows, in parallel.
    template <typename Work>
    void each_row(const Work& work) const {
        const int64_t blocks = x_.blocks();
#pragma omp parallel for collapse(2) schedule(static)
        for (int64_t panel = 0; panel < x_.panels(); panel++)
            for (int64_t row = 0; row < pixel_rows_; row++) {
                const int64_t n = panel / blocks, block = panel % blocks;
                work(x_.offset(n, block) + row * columns_ * x_.inner_stride,
                     y_.offset(n, block) + row * height_ * top_row());
            }
    }

    int64_t height_, width_;        // of the rectangles
    int64_t pixel_rows_, columns_;  // of the bottom
    ChannelRows x_{}, y_{};
};

static const RegisterOp<RepeatPixels> registered("RepeatPixels");

}  // namespace
}  // namespace engine
