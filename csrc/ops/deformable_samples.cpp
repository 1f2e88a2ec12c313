// Samples x for a deformable convolution (Dai et al. 2017, arXiv 1703.06211), in which each place of a window has an
// offset of its own. The top has the windows side by side, for a convolution whose stride is its kernel. Samples are
// interpolated bilinearly between pixels; beyond the last row or column they have its value, and outside of x they are
// 0.
// inputs: x (N, C, H, W), float32, any layout with rows of channels; offsets (N, group * kernel[0] * kernel[1] * 2, h,
// w), float32, row-major, for each place in rows, then in columns; outputs: (N, C, h * kernel[0], w * kernel[1]), laid
// out as x; attributes: kernel, stride, pad, dilation (two each, of rows and of columns), group (how many groups of
// channels have offsets of their own).
#include <algorithm>

#include "kernels/sixteen.h"
#include "kernels/whole.h"
#include "ops/common/channel_layout.h"
#include "ops/common/parts.h"

namespace engine {
namespace {

// The four pixels around a place, as offsets in memory, and the weights of the lower and of the right ones.
struct Place {
    int64_t top_left, top_right, bottom_left, bottom_right;
    float down, across;
    bool inside;
};

// The values of some channels at the four pixels.
template <typename Piece>
struct Corners {
    typename Piece::Vector top_left, top_right, bottom_left, bottom_right;

    ENGINE_INLINE Corners(const Piece& piece, const float* x, const Place& p) {
        piece.read(x + p.top_left, top_left);
        piece.read(x + p.top_right, top_right);
        piece.read(x + p.bottom_left, bottom_left);
        piece.read(x + p.bottom_right, bottom_right);
    }
};

template <typename Vector>
ENGINE_INLINE void mix(const Vector& a, const Vector& b, float share, Vector& mixed) {
    mixed = a + share * (b - a);
}

void read_pixel(const float* x, const Place& p, int64_t lanes, float* y) {
    in_sixteens(lanes, [=](auto piece, int64_t lane) ENGINE_BODY {
        const Corners of(piece, x + lane, p);
        typename decltype(piece)::Vector top, bottom, value;
        mix(of.top_left, of.top_right, p.across, top);
        mix(of.bottom_left, of.bottom_right, p.across, bottom);
        mix(top, bottom, p.down, value);
        piece.write(value, y + lane);
    });
}

void spread_pixel(const float* given, const Place& p, int64_t lanes, float* wanted) {
    in_sixteens(lanes, [=](auto piece, int64_t lane) ENGINE_BODY {
        typename decltype(piece)::Vector gradient;
        piece.read(given + lane, gradient);
        const auto add = [&](int64_t at, float share) ENGINE_BODY {
            typename decltype(piece)::Vector sum;
            piece.read(wanted + at + lane, sum);
            piece.write(sum + share * gradient, wanted + at + lane);
        };
        add(p.top_left, (1 - p.down) * (1 - p.across));
        add(p.top_right, (1 - p.down) * p.across);
        add(p.bottom_left, p.down * (1 - p.across));
        add(p.bottom_right, p.down * p.across);
    });
}

// The gradient of a place in rows and in columns, as sixteen sums, each over every sixteenth channel.
struct Slopes {
    float rows[16] = {}, columns[16] = {};
};

void add_slopes(const float* x, const float* given, const Place& p, int64_t lanes, Slopes& slopes) {
    in_sixteens(lanes, [=, &slopes](auto piece, int64_t lane) ENGINE_BODY {
        const Corners of(piece, x + lane, p);
        typename decltype(piece)::Vector gradient, slope, sum;
        piece.read(given + lane, gradient);
        mix(of.bottom_left - of.top_left, of.bottom_right - of.top_right, p.across, slope);
        read(slopes.rows, sum);
        write(sum + gradient * slope, slopes.rows);
        mix(of.top_right - of.top_left, of.bottom_right - of.bottom_left, p.down, slope);
        read(slopes.columns, sum);
        write(sum + gradient * slope, slopes.columns);
    });
}

float sum(const float (&values)[16]) {
    float total = 0;
    for (const float value : values) total += value;
    return total;
}

struct Axis {
    int64_t kernel, stride, pad, dilation, pixels, windows;
};

class DeformableSamples : public Op {
public:
    explicit DeformableSamples(OpSpec spec)
        : Op(std::move(spec)), rows_(axis(0)), columns_(axis(1)), group_(spec_.attributes.integer("group")) {
        const TensorPtr& x = input(0);
        const Layout top = layout_like(x->layout, spec_.output_shapes[0], memory::data_type::f32);
        const auto both = rows_of_both(x->layout, top);
        x_ = both.bottom;
        y_ = both.top;
        output(0, top);
        touch(Pass::forward, {x, input(1), outputs_[0]});
        if (!needs_backward() || !output_gradient(0)) return;
        touch(Pass::backward, {x, input(1), outputs_[0]->diff});
        for (const auto& each : spec_.inputs)
            if (each->diff) touch(Pass::backward, each->diff);
    }

    void forward(const dnnl::stream&) override {
#pragma omp parallel for collapse(2) schedule(static)
        for (int64_t n = 0; n < x_.outer; n++)
            for (int64_t row = 0; row < rows_.windows; row++)
                each_place(n, row, {0, group_}, [&](int64_t group, const Place& p, int64_t top, int64_t) {
                    each_run(n, group, {0, x_.blocks()}, [&](int64_t from, int64_t to, int64_t lanes) {
                        float* const y = outputs_[0]->data() + to + top;
                        if (p.inside)
                            read_pixel(input(0)->data() + from, p, lanes, y);
                        else
                            std::fill_n(y, lanes, 0.f);
                    });
                });
    }

    void backward(const dnnl::stream&) override {
        if (touched(Pass::backward).empty()) return;
        if (input_gradient(0)) differentiate_pixels();
        if (input_gradient(1)) differentiate_offsets();
    }

private:
    Axis axis(int64_t i) const {
        const auto& a = spec_.attributes;
        const int64_t kernel = a.integers("kernel")[i];
        return {kernel,
                a.integers("stride")[i],
                a.integers("pad")[i],
                a.integers("dilation")[i],
                input(0)->shape[i + 2],
                spec_.output_shapes[0][i + 2] / kernel};
    }

    // Returns the distance from the offset of a row to that of its column.
    int64_t plane() const { return rows_.windows * columns_.windows; }

    Place place(const float* offset, int64_t row, int64_t column, int64_t i, int64_t j) const {
        const float down = float(row * rows_.stride - rows_.pad + i * rows_.dilation) + offset[column];
        const float across =
            float(column * columns_.stride - columns_.pad + j * columns_.dilation) + offset[plane() + column];
        if (!(down >= 0 && down < float(rows_.pixels) && across >= 0 && across < float(columns_.pixels))) return {};
        const int64_t top = whole(down), left = whole(across);
        const int64_t bottom = std::min(top + 1, rows_.pixels - 1), right = std::min(left + 1, columns_.pixels - 1);
        const auto at = [&](int64_t y, int64_t x) { return (y * columns_.pixels + x) * x_.inner_stride; };
        return {
            at(top, left), at(top, right), at(bottom, left), at(bottom, right), down - float(top), across - float(left),
            true};
    }

    struct Range {
        int64_t begin, end;
    };

    // Calls work(group, place, where its pixel of the top begins, index of its row's offset) for all places that a row
    // of windows reads of image n.
    template <typename Work>
    void each_place(int64_t n, int64_t row, const Range& groups, const Work& work) const {
        const int64_t taps = rows_.kernel * columns_.kernel, width = columns_.windows * columns_.kernel;
        for (int64_t group = groups.begin; group < groups.end; group++)
            for (int64_t tap = 0; tap < taps; tap++) {
                const int64_t i = tap / columns_.kernel, j = tap % columns_.kernel;
                const int64_t offset = ((n * group_ + group) * taps + tap) * 2 * plane() + row * columns_.windows;
                const int64_t top = (row * rows_.kernel + i) * width + j;
                for (int64_t column = 0; column < columns_.windows; column++)
                    work(group, place(input(1)->data() + offset, row, column, i, j),
                         (top + column * columns_.kernel) * y_.inner_stride, offset + column);
            }
    }

    // Calls run(begin in x, begin in y, lanes) for the channels of a group in some blocks of image n, once for each run
    // of neighbours. The lanes of padding belong to the last group.
    template <typename Run>
    void each_run(int64_t n, int64_t group, const Range& blocks, const Run& run) const {
        const int64_t each = x_.channels / group_, last = group + 1 == group_;
        const int64_t end = std::min(last ? x_.padded_channels() : (group + 1) * each, blocks.end * x_.lanes);
        for (int64_t channel = std::max(group * each, blocks.begin * x_.lanes); channel < end;) {
            const int64_t block = channel / x_.lanes, lane = channel % x_.lanes;
            const int64_t stop = std::min(end, (block + 1) * x_.lanes);
            run(x_.offset(n, block) + lane, y_.offset(n, block) + lane, stop - channel);
            channel = stop;
        }
    }

    // Returns the groups that have channels in a block.
    Range groups_of(int64_t block) const {
        const int64_t each = x_.channels / group_, first = block * x_.lanes,
                      end = std::min(first + x_.lanes, x_.channels);
        return {first / each, (end - 1) / each + 1};
    }

    void differentiate_pixels() const {
        const int64_t pixels = rows_.pixels * columns_.pixels;
#pragma omp parallel for collapse(2) schedule(static)
        for (int64_t n = 0; n < x_.outer; n++)
            for (int64_t block = 0; block < x_.blocks(); block++) {
                float* const wanted = input(0)->diff->data();
                for (int64_t i = 0; i < pixels; i++)
                    std::fill_n(wanted + x_.offset(n, block) + i * x_.inner_stride, x_.lanes, 0.f);
                for (int64_t row = 0; row < rows_.windows; row++)
                    each_place(n, row, groups_of(block), [&](int64_t group, const Place& p, int64_t top, int64_t) {
                        if (!p.inside) return;
                        each_run(n, group, {block, block + 1}, [&](int64_t from, int64_t to, int64_t lanes) {
                            spread_pixel(outputs_[0]->diff->data() + to + top, p, lanes, wanted + from);
                        });
                    });
            }
    }

    void differentiate_offsets() const {
        float* const wanted = input(1)->diff->data();
#pragma omp parallel for collapse(2) schedule(static)
        for (int64_t n = 0; n < x_.outer; n++)
            for (int64_t row = 0; row < rows_.windows; row++)
                each_place(n, row, {0, group_}, [&](int64_t group, const Place& p, int64_t top, int64_t offset) {
                    Slopes slopes;
                    if (p.inside)
                        each_run(n, group, {0, x_.blocks()}, [&](int64_t from, int64_t to, int64_t lanes) {
                            add_slopes(input(0)->data() + from, outputs_[0]->diff->data() + to + top, p, lanes, slopes);
                        });
                    wanted[offset] = sum(slopes.rows);
                    wanted[offset + plane()] = sum(slopes.columns);
                });
    }

    Axis rows_, columns_;
    int64_t group_;
    ChannelRows x_{}, y_{};
};

static const RegisterOp<DeformableSamples> registered("DeformableSamples");

}  // namespace
}  // namespace engine
