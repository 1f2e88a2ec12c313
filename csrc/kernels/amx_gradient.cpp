#include "kernels/amx_gradient.h"

#include <algorithm>

#if defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12 warns of its own intrinsics
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include "kernels/amx_tiles.h"
#include "kernels/isa.h"

namespace engine {

namespace {

inline int64_t pairs_of(int64_t channels) { return (channels + wide - 1) / wide; }
inline int64_t chunks_of(int64_t pixels) { return (pixels + wide - 1) / wide; }

}  // namespace

// The sizes of what one thread works in, besides the sums: both matrices, pointers to the rows of pixels, copies of
// rows that reach over the edge of an image, a row of zeros, sums for a bias.
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

AmxGradient::AmxGradient(const ConvolutionShape& shape, int64_t threads)
    : shape_(shape), together_(columns_together(shape)), threads_(threads) {
    const int64_t channels = shape.channels * together_;
    swapped_ = taps() == 1 && channels < shape.outputs;
    left_ = swapped_ ? channels : shape.outputs;
    right_ = swapped_ ? shape.outputs : channels;
    sides_ = sides_of(threads, block_floats() * int64_t(sizeof(float)),
                      shape.pixels() * (left_ + right_) * int64_t(sizeof(bf16)), pairs_of(right_));
    ranges_ = std::min(threads / sides_, chunks_of(shape.pixels()));
    // A run's matrices fit into the first-level cache, if that makes a decent run; else the left one fits into the
    // second.
    constexpr int64_t first_cache = 40 << 10, second_cache = 640 << 10, decent = 4 * wide, longest = 18 * wide;
    const int64_t pixel = pairs_of(left_) * wide * int64_t(sizeof(bf16));
    run_ = first_cache / (pixel + wide * int64_t(sizeof(bf16)));
    if (run_ < decent) run_ = std::clamp(second_cache / pixel, 2 * wide, longest);
    run_ = run_ / wide * wide;
}

int64_t AmxGradient::block_floats() const { return taps() * pairs_of(left_) * pairs_of(right_) * pair_floats; }

int64_t AmxGradient::scratch_bytes() const {
    return ranges_ * block_floats() * int64_t(sizeof(float)) + threads_ * Room(*this).all();
}

}  // namespace engine

#if defined(__x86_64__)

#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,amx-tile,amx-bf16")

namespace engine {

namespace {

// Adds the channels of `count` rows to sums.
inline void add_bias(Rows rows, int64_t count, int64_t channels, double* sums) {
    constexpr int together = 4;  // vectors at a time, whose additions do not wait for each other
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

// Sets elements [begin, end) of the gradient before a ReLU.
inline void pass_positive(const ResultGradient& dy, int64_t begin, int64_t end) {
    const __m512i zero = _mm512_setzero_si512();  // a bfloat16 is positive if its bits as an integer are
    for (int64_t i = begin; i < end; i += wide) {
        const __mmask32 inside = mask_of(end - i);
        const __m512i result = _mm512_maskz_loadu_epi16(inside, dy.result + i);
        const __mmask32 positive = _mm512_mask_cmpgt_epi16_mask(inside, result, zero);
        _mm512_mask_storeu_epi16(dy.passed + i, inside, _mm512_maskz_loadu_epi16(positive, dy.values + i));
    }
}

// Writes the sums `which` selects, or adds them to what is there.
inline void write(__m512i values, __mmask16 which, bool add, float* to) {
    __m512 sum = __m512(values);
    if (add) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(which, to));
    _mm512_mask_storeu_ps(to, which, sum);
}

}  // namespace

// Does one thread's share of the work, a run of pixels at a time.
struct AmxGradient::Worker {
    Worker(const AmxGradient& job, int64_t thread, const bf16* x, const ResultGradient& dy, float* sums, char* room)
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

    void run(int64_t range, bool wants_bias) {
        const int64_t all = chunks_of(shape_.pixels()), longest = job_.run_ / wide;
        const int64_t begin = all * range / job_.ranges_, chunks = all * (range + 1) / job_.ranges_ - begin;
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
        if (wants_bias) add_bias(dy_rows_, chunks * wide, shape_.outputs, bias_);
        const auto left_rows = job_.swapped_ ? x_rows_ : dy_rows_, right_rows = job_.swapped_ ? dy_rows_ : x_rows_;
        if (job_.swapped_) find_x(first, chunks, 0);
        for (int64_t chunk = 0; chunk < chunks; chunk++)
            for (int64_t pair = 0; pair < left_pairs; pair++)
                pack_left(left_rows + chunk * wide, pair * wide, mask_of(job_.left_ - pair * wide),
                          left_ + (pair * chunks + chunk) * pair_elements);
        // Whether the sums are too many for the second-level cache to hold them from run to run.
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

    // Sets dy_rows_ to the pixels from `first` on, and to zeros behind the last.
    void find_dy(int64_t first, int64_t chunks) {
        const int64_t pixels = shape_.pixels();
        for (int64_t i = 0; i < chunks * wide; i++)
            dy_rows_[i] = first + i < pixels ? dy_.passed + (first + i) * shape_.outputs : zeros_;
    }

    // Sets x_rows_ to what pixel `tap` of the kernel sees at these pixels, and to zeros outside of the image.
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

    // Sets rows i, i + 1, ... of x_rows_, for `count` neighbouring results, of which the first sees row y of x from
    // column z on.
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

    // Copies the pixels of a row from column z on, with zeros for those outside of the image.
    const bf16* over_the_edge(int64_t row, int64_t z, bf16* copy) const {
        const int64_t channels = shape_.channels;
        for (int64_t k = 0; k < job_.together_; k++) {
            const bool inside = z + k >= 0 && z + k < shape_.in[1];
            const bf16* const from = inside ? x_ + (row * shape_.in[1] + z + k) * channels : zeros_;
            for (int64_t c = 0; c < channels; c++) copy[k * channels + c] = from[c];
        }
        return copy;
    }

    // Returns roughly where x begins for a pixel of the results.
    const bf16* x_at(int64_t pixel) const {
        const int64_t image = pixel / (shape_.out[0] * shape_.out[1]), row = pixel / shape_.out[1] % shape_.out[0];
        const int64_t column = pixel % shape_.out[1];
        const int64_t at = (image * shape_.in[0] + row * shape_.stride[0]) * shape_.in[1] + column * shape_.stride[1];
        return x_ + at * shape_.channels;
    }

    // Returns the ranges that the next run reads, from pixel `first` on, to be fetched in `steps` steps.
    Ahead ahead_of(int64_t first, int64_t chunks, int64_t steps) const {
        const int64_t from = within(first), to = within(first + chunks * wide), outputs = shape_.outputs;
        Ahead ahead{};
        ahead.add(x_at(from), x_at(to));
        ahead.add(dy_.values + from * outputs, dy_.values + to * outputs);
        if (dy_.result) ahead.add(dy_.result + from * outputs, dy_.result + to * outputs);
        ahead.lines = (ahead.bytes() / line + steps - 1) / steps;
        return ahead;
    }

    int64_t within(int64_t pixel) const { return pixel < shape_.pixels() ? pixel : shape_.pixels(); }

    const AmxGradient& job_;
    const ConvolutionShape& shape_;
    const bf16* x_;
    const ResultGradient dy_;
    float* sums_;
    uint16_t *left_, *right_;
    const bf16 **x_rows_, **dy_rows_;
    bf16 *edges_, *zeros_;
    double* bias_;
    int64_t first_pair_, end_pair_;
};

bool AmxGradient::available() {
    static const bool result = [] {
        if (!may_use(Isa::amx)) return false;
        constexpr int ask_for_state = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM: Linux must permit the tiles
        return syscall(SYS_arch_prctl, ask_for_state, tile_data) == 0;
    }();
    return result;
}

float* AmxGradient::sums(char* scratch, int64_t range) const {
    return reinterpret_cast<float*>(scratch) + range * block_floats();
}

char* AmxGradient::room(char* scratch, int64_t thread) const {
    return reinterpret_cast<char*>(sums(scratch, ranges_)) + thread * Room(*this).all();
}

void AmxGradient::work(int64_t thread, const bf16* x, const ResultGradient& dy, bool wants_bias, char* scratch) const {
    const int64_t range = thread / sides_;
    if (range >= ranges_) return;
    const TileConfig config;
    asm volatile("" ::"r"(&config) : "memory");
    _tile_loadconfig(&config);
    Worker(*this, thread, x, dy, sums(scratch, range), room(scratch, thread)).run(range, wants_bias);
    _tile_release();
}

// Sums the ranges' sums, a share of them in each thread, and brings channels into their order.
void AmxGradient::collect(int64_t thread, const Gradient& weights, const Gradient& bias, char* scratch) const {
    const __m512i first_half = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23),
                  second_half = _mm512_add_epi32(first_half, _mm512_set1_epi32(8));
    const int64_t left_pairs = pairs_of(left_), right_pairs = pairs_of(right_), pairs = left_pairs * right_pairs;
    const int64_t all = taps() * pairs, begin = all * thread / threads_, end = all * (thread + 1) / threads_;
    for (int64_t block = begin; block < end; block++) {
        __m512 total[64];
        for (int i = 0; i < 64; i++) {
            total[i] = _mm512_load_ps(sums(scratch, 0) + block * pair_floats + i * 16);
            for (int64_t range = 1; range < ranges_; range++)
                total[i] = _mm512_add_ps(total[i], _mm512_load_ps(sums(scratch, range) + block * pair_floats + i * 16));
        }
        __m512i ordered[2][32];  // [half of the right channels][left channel]
        for (int i = 0; i < 32; i++) {
            const int at = i % 8 / 4 * 32 + i / 8 * 4 + i % 4;
            const __m512 a = total[at], b = total[at + 16];
            ordered[0][i] = __m512i(_mm512_permutex2var_ps(a, first_half, b));
            ordered[1][i] = __m512i(_mm512_permutex2var_ps(a, second_half, b));
        }
        const int64_t tap = block / pairs, left = block % left_pairs * wide,
                      right = block / left_pairs % right_pairs * wide;
        for (int64_t half : {0, 1}) {
            if (swapped_) {
                transpose16(ordered[half]);
                transpose16(ordered[half] + 16);
                for (int64_t i = 0; i < 16 && right + half * 16 + i < right_; i++)
                    for (int64_t j = 0; j < 32 && left + j < left_; j += 16)
                        write(ordered[half][j + i], __mmask16(mask_of(left_ - left - j)), weights.add,
                              weights.values + (right + half * 16 + i) * left_ + left + j);
                continue;
            }
            if (right + half * 16 >= right_) continue;
            const __mmask16 mask = __mmask16(mask_of(right_ - right - half * 16));
            for (int64_t i = 0; i < 32 && left + i < left_; i++)
                write(ordered[half][i], mask, weights.add,
                      weights.values + ((left + i) * taps() + tap) * right_ + right + half * 16);
        }
    }
    if (thread > 0 || !bias.values) return;
    const Room sizes(*this);
    const auto of_range = [&](int64_t range) {
        return reinterpret_cast<const double*>(room(scratch, range * sides_) + sizes.all() - sizes.bias);
    };
    collect_bias(shape_.outputs, ranges_, of_range, bias.add, bias.values);
}

void AmxGradient::run(const bf16* x, const ResultGradient& given, const Gradient& weights, const Gradient& bias,
                      char* scratch) const {
    share_out(
        shape_, given, threads_, sides_,
        [&](int64_t thread, const ResultGradient& dy) { work(thread, x, dy, bias.values != nullptr, scratch); },
        [&](int64_t thread) { collect(thread, weights, bias, scratch); });
}

}  // namespace engine

#else

namespace engine {

bool AmxGradient::available() { return false; }
void AmxGradient::run(const bf16*, const ResultGradient&, const Gradient&, const Gradient&, char*) const {}

}  // namespace engine
#endif
