// One thread's share of an AmxGradient: the memory that it needs, and what it does with a run of pixels.
#pragma once

#include <algorithm>

#include "amx_gradient.h"
#include "amx_tiles.h"

namespace engine {

namespace {

inline int64_t pairs_of(int64_t channels) { return (channels + wide - 1) / wide; }
inline int64_t chunks_of(int64_t pixels) { return (pixels + wide - 1) / wide; }
inline int64_t whole_lines(int64_t bytes) { return (bytes + line - 1) / line * line; }

}  // namespace

// What one thread needs besides the sums: both matrices, where the rows of pixels are, rows that reach over the edge of
// an image, a row of zeros, sums for a bias.
struct AmxGradient::Room {
    explicit Room(const AmxGradient& job)
        : left(whole_lines(pairs_of(job.left_) * job.run_ * wide * int64_t(sizeof(bf16)))),
          right(whole_lines(job.run_ * wide * int64_t(sizeof(bf16)))),
          rows(whole_lines(2 * job.run_ * int64_t(sizeof(void*)))),
          edges(job.together_ > 1 ? whole_lines(job.run_ * job.row_at_edge() * int64_t(sizeof(bf16))) : 0),
          zeros(whole_lines((std::max(job.left_, job.right_) + wide) * int64_t(sizeof(bf16)))),
          bias(whole_lines((job.shape_.outputs + wide) * int64_t(sizeof(double)))) {}
    int64_t all() const { return left + right + rows + edges + zeros + bias; }
    int64_t left, right, rows, edges, zeros, bias;  // bytes
};

}  // namespace engine

#if defined(__x86_64__)

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,amx-tile,amx-bf16")

namespace engine {

namespace {

inline void add_rows(Rows rows, int64_t count, int64_t channels, double* sums) {
    constexpr int together = 4;  // vectors, whose additions do not wait for each other
    for (int64_t first = 0; first < channels; first += together * 16) {
        __mmask16 masks[together];
        __m512 sum[together];
        for (int v = 0; v < together; v++) {
            const int64_t left = channels - first - v * 16;
            masks[v] = left > 0 ? __mmask16(mask_of(left)) : 0;
            sum[v] = _mm512_setzero_ps();
        }
        for (int64_t i = 0; i < count; i++) {
            for (int v = 0; v < together; v++) {
                const __m256i halves = _mm256_maskz_loadu_epi16(masks[v], rows[i] + first + v * 16);
                sum[v] = _mm512_add_ps(sum[v], __m512(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16)));
            }
        }
        for (int v = 0; v < together; v++) {
            alignas(64) float lanes[16];
            _mm512_store_ps(lanes, sum[v]);
            for (int64_t i = first + v * 16; i < channels && i < first + v * 16 + 16; i++)
                sums[i] += lanes[i - first - v * 16];
        }
    }
}

// Elements [begin, end) of the gradient in front of a ReLU.
inline void pass_positive(const AmxGradient::Incoming& dy, int64_t begin, int64_t end) {
    const __m512i zero = _mm512_setzero_si512();  // bfloat16 are positive where whole numbers of their bits are
    for (int64_t i = begin; i < end; i += wide) {
        const __mmask32 inside = mask_of(end - i);
        const __m512i result = _mm512_maskz_loadu_epi16(inside, dy.result + i);
        const __mmask32 positive = _mm512_mask_cmpgt_epi16_mask(inside, result, zero);
        _mm512_mask_storeu_epi16(dy.passed + i, inside, _mm512_maskz_loadu_epi16(positive, dy.values + i));
    }
}

}  // namespace

// One thread's share.
struct AmxGradient::Worker {
    Worker(const AmxGradient& job, int64_t thread, const bf16* x, const Incoming& dy, float* sums, char* room)
        : job_(job), shape_(job.shape_), x_(x), dy_(dy), sums_(sums) {
        const Room sizes(job);
        left_ = reinterpret_cast<uint16_t*>(room);
        right_ = reinterpret_cast<uint16_t*>(room += sizes.left);
        x_rows_ = reinterpret_cast<const bf16**>(room += sizes.right);
        dy_rows_ = x_rows_ + job.run_;
        edges_ = reinterpret_cast<bf16*>(room += sizes.rows);
        zeros_ = reinterpret_cast<bf16*>(room += sizes.edges);
        bias_ = reinterpret_cast<double*>(room += sizes.zeros);
        for (int64_t i = 0; i < sizes.zeros / int64_t(sizeof(bf16)); i++) zeros_[i].bits = 0;
        for (int64_t i = 0; i < shape_.outputs; i++) bias_[i] = 0;
        const int64_t pairs = pairs_of(job.right_), side = thread % job.sides_;
        first_pair_ = pairs * side / job.sides_;
        end_pair_ = pairs * (side + 1) / job.sides_;
    }

    void run(int64_t part, bool wants_bias) {
        const int64_t all = chunks_of(job_.pixels()), longest = job_.run_ / wide;
        const int64_t begin = all * part / job_.parts_, chunks = all * (part + 1) / job_.parts_ - begin;
        const int64_t runs = (chunks + longest - 1) / longest;
        for (int64_t i = 0; i < runs; i++) {
            const int64_t first = begin + chunks * i / runs, end = begin + chunks * (i + 1) / runs;
            work(first * wide, end - first, i == 0, wants_bias);
        }
    }

private:
    void work(int64_t first, int64_t chunks, bool fresh, bool wants_bias) {
        const int64_t left_pairs = pairs_of(job_.left_), taps = job_.taps();
        if (dy_.result)
            pass_positive(dy_, within(first) * shape_.outputs, within(first + chunks * wide) * shape_.outputs);
        find_dy(first, chunks);
        if (wants_bias) add_rows(dy_rows_, chunks * wide, shape_.outputs, bias_);
        const auto left_rows = job_.swapped_ ? x_rows_ : dy_rows_, right_rows = job_.swapped_ ? dy_rows_ : x_rows_;
        if (job_.swapped_) find_x(first, chunks, 0);
        for (int64_t chunk = 0; chunk < chunks; chunk++)
            for (int64_t pair = 0; pair < left_pairs; pair++)
                pack_left(left_rows + chunk * wide, pair * wide, mask_of(job_.left_ - pair * wide),
                          left_ + (pair * chunks + chunk) * pair_elements);
        // Sums that the second-level cache does not hold from run to run.
        const bool far = taps * (end_pair_ - first_pair_) * left_pairs * pair_floats * int64_t(sizeof(float)) > 1 << 20;
        const int64_t next_lines = far ? (pair_floats * int64_t(sizeof(float)) / line + chunks - 1) / chunks : 0;
        Ahead ahead = ahead_of(first + chunks * wide, chunks, taps * (end_pair_ - first_pair_) * left_pairs * chunks);
        for (int64_t tap = 0; tap < taps; tap++) {
            if (!job_.swapped_) find_x(first, chunks, tap);
            for (int64_t pair = first_pair_; pair < end_pair_; pair++) {
                for (int64_t chunk = 0; chunk < chunks; chunk++)
                    pack_right(right_rows + chunk * wide, pair * wide, mask_of(job_.right_ - pair * wide),
                               right_ + chunk * pair_elements);
                float* const sums = sums_ + (tap * pairs_of(job_.right_) + pair) * left_pairs * pair_floats;
                for (int64_t i = 0; i < left_pairs; i++)
                    multiply(left_ + i * chunks * pair_elements, right_, chunks, fresh, sums + i * pair_floats, ahead,
                             next_lines);
            }
        }
    }

    // The rows of the pixels from `first` on; zeros behind the last.
    void find_dy(int64_t first, int64_t chunks) {
        const int64_t pixels = job_.pixels();
        for (int64_t i = 0; i < chunks * wide; i++)
            dy_rows_[i] = first + i < pixels ? dy_.passed + (first + i) * shape_.outputs : zeros_;
    }

    // What a pixel of the kernel sees of x there; zeros outside of the image.
    void find_x(int64_t first, int64_t chunks, int64_t tap) {
        const int64_t across = shape_.kernel[1] / job_.together_;
        const int64_t down = tap / across * shape_.step[0] - shape_.pad[0];
        const int64_t right = tap % across * shape_.step[1] - shape_.pad[1];
        int64_t image = first / (shape_.out[0] * shape_.out[1]);
        int64_t row = first / shape_.out[1] % shape_.out[0], column = first % shape_.out[1];
        for (int64_t i = 0, end = chunks * wide; i < end; column = 0) {
            const int64_t rest = shape_.out[1] - column, count = rest < end - i ? rest : end - i;
            find_row(image, row * shape_.stride[0] + down, column * shape_.stride[1] + right, count, i);
            i += count;
            if (++row < shape_.out[0]) continue;
            row = 0;
            image++;
        }
    }

    // Of `count` results beside each other, the first of which sees row y of x from column z on: the i-th and
    // following.
    void find_row(int64_t image, int64_t y, int64_t z, int64_t count, int64_t i) {
        const int64_t columns = shape_.in[1], stride = shape_.stride[1], step = stride * shape_.channels;
        if (image >= shape_.images || y < 0 || y >= shape_.in[0]) {
            for (const int64_t end = i + count; i < end; i++) x_rows_[i] = zeros_;
            return;
        }
        const int64_t line = image * shape_.in[0] + y, last = columns - job_.together_;
        const auto at_edge = [&] {
            if (z + job_.together_ <= 0 || z >= columns)
                x_rows_[i] = zeros_;
            else
                x_rows_[i] = over_the_edge(line, z, edges_ + i * job_.row_at_edge());
        };
        for (; count > 0 && z < 0; count--, i++, z += stride) at_edge();
        const int64_t fit = z <= last ? (last - z) / stride + 1 : 0, inside = fit < count ? fit : count;
        const bf16* const from = x_ + (line * columns + z) * shape_.channels;
        for (int64_t k = 0; k < inside; k++) x_rows_[i + k] = from + k * step;
        i += inside;
        z += inside * stride;
        for (count -= inside; count > 0; count--, i++, z += stride) at_edge();
    }

    // A copy of the pixels of a row from column z on, with zeros for those outside of the image.
    const bf16* over_the_edge(int64_t row, int64_t z, bf16* copy) const {
        const int64_t channels = shape_.channels;
        for (int64_t k = 0; k < job_.together_; k++) {
            const bool inside = z + k >= 0 && z + k < shape_.in[1];
            const bf16* const from = inside ? x_ + (row * shape_.in[1] + z + k) * channels : zeros_;
            for (int64_t c = 0; c < channels; c++) copy[k * channels + c] = from[c];
        }
        return copy;
    }

    // Where x begins for a pixel of the results, roughly.
    const bf16* x_at(int64_t pixel) const {
        const int64_t image = pixel / (shape_.out[0] * shape_.out[1]), row = pixel / shape_.out[1] % shape_.out[0];
        const int64_t column = pixel % shape_.out[1];
        const int64_t at = (image * shape_.in[0] + row * shape_.stride[0]) * shape_.in[1] + column * shape_.stride[1];
        return x_ + at * shape_.channels;
    }

    Ahead ahead_of(int64_t first, int64_t chunks, int64_t steps) const {
        const int64_t from = within(first), to = within(first + chunks * wide), outputs = shape_.outputs;
        Ahead ahead{};
        ahead.add(x_at(from), x_at(to));
        ahead.add(dy_.values + from * outputs, dy_.values + to * outputs);
        if (dy_.result) ahead.add(dy_.result + from * outputs, dy_.result + to * outputs);
        ahead.lines = (ahead.bytes() / line + steps - 1) / steps;
        return ahead;
    }

    int64_t within(int64_t pixel) const { return pixel < job_.pixels() ? pixel : job_.pixels(); }

    const AmxGradient& job_;
    const ConvolutionShape& shape_;
    const bf16* x_;
    const Incoming dy_;
    float* sums_;
    uint16_t *left_, *right_;
    const bf16 **x_rows_, **dy_rows_;
    bf16 *edges_, *zeros_;
    double* bias_;
    int64_t first_pair_, end_pair_;
};

}  // namespace engine

#pragma GCC pop_options
#endif
