#include "kernels/pair_gradient.h"

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12 warns of its own intrinsics
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include "kernels/isa.h"

namespace engine {

namespace {

constexpr int64_t block = 16;         // channels of a block
constexpr int64_t panel = 2 * block;  // outputs whose sums are in registers at a time
constexpr int64_t piece = 256;        // pixels at a time: the first-level cache holds a block and a panel of them

// Replaces std::min: the linker might take one compiled here, for AVX-512, for files that must run on any processor.
inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

}  // namespace

// The sizes of what one thread works in, besides the sums: pairs of dy and of x, pointers to the pixels of both, sums
// for a bias.
struct PairGradient::Room {
    explicit Room(const PairGradient& job)
        : dy(whole_lines(job.pairs_of_run() * job.slab_ * int64_t(sizeof(uint32_t)))),
          x(whole_lines(piece / 2 * block * int64_t(sizeof(uint32_t)))),
          pixels(whole_lines(4 * job.pairs_of_run() * int64_t(sizeof(void*)))),
          bias(whole_lines(job.shape_.outputs * int64_t(sizeof(double)))) {}
    int64_t all() const { return dy + x + pixels + bias; }
    int64_t dy, x, pixels, bias;  // bytes
};

PairGradient::PairGradient(const ConvolutionShape& shape, int64_t threads) : shape_(shape), threads_(threads) {
    const int64_t pixels = shape.pixels(), sum_bytes = floats() * int64_t(sizeof(float));
    sides_ = sides_of(threads, sum_bytes, pixels * (shape.channels + shape.outputs) * int64_t(sizeof(bf16)),
                      shape.channels / block);
    // A run and the next one fit into the second-level cache; if sums are too many to stay there from run to run, runs
    // are long.
    constexpr int64_t cache = 512 << 10, longest = 4 * piece;
    slab_ = std::min((shape.outputs + panel - 1) / panel * panel, cache / longest / int64_t(sizeof(bf16)));
    const int64_t fit = cache / (shape.channels + shape.outputs + slab_) / int64_t(sizeof(bf16));
    const int64_t share = (pixels * sides_ + threads - 1) / threads;
    rows_ = std::min(sum_bytes > cache ? longest : std::clamp(fit, piece, longest), share) / shape.out[1];
    rows_ = std::max<int64_t>(rows_, 1);
    if (rows_ < shape.out[0])
        rows_ = (shape.out[0] + runs_of_image() - 1) / runs_of_image();
    else
        rows_ = rows_ / shape.out[0] * shape.out[0];
    ranges_ = std::min(threads / sides_, runs());
}

int64_t PairGradient::scratch_bytes() const {
    return (ranges_ > 1 ? ranges_ : 0) * floats() * int64_t(sizeof(float)) + threads_ * Room(*this).all();
}

// Returns the sums of a range, if there are several.
float* PairGradient::sums(char* scratch, int64_t range) const {
    return reinterpret_cast<float*>(scratch) + range * floats();
}

char* PairGradient::room(char* scratch, int64_t thread) const {
    return reinterpret_cast<char*>(sums(scratch, ranges_ > 1 ? ranges_ : 0)) + thread * Room(*this).all();
}

}  // namespace engine

#if defined(__x86_64__)

#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")

namespace engine {

namespace {

// Pointers to pixels in the first block of channels; null outside of the image.
using Pixels = const bf16**;

inline __m256i load(const bf16* pixel, int64_t offset) {
    return pixel ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pixel + offset)) : _mm256_setzero_si256();
}

// Pixels to prefetch, `offset` from those of `from`; none if `from` is null.
struct PixelsAhead {
    const bf16* const* from;
    int64_t offset;
    void fetch(int64_t i) const { _mm_prefetch(reinterpret_cast<const char*>(from[i] + offset), _MM_HINT_T1); }
};

inline __m512i side_by_side(__m256i first, __m256i second) {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1));
}

template <int channels, int blocks, bool asks>
inline void multiply(const uint32_t* x, const uint32_t* y, int64_t pairs, const PixelsAhead& ahead, bool fresh,
                     float* sums, int64_t between) {
    __m512 total[channels][blocks];
#pragma GCC unroll 16
    for (int c = 0; c < channels; c++)
#pragma GCC unroll 2
        for (int b = 0; b < blocks; b++) total[c][b] = _mm512_setzero_ps();
    for (int64_t k = 0; k < pairs; k++) {
        if (asks) {
            ahead.fetch(2 * k);
            ahead.fetch(2 * k + 1);
        }
        __m512bh right[blocks];
#pragma GCC unroll 2
        for (int b = 0; b < blocks; b++) right[b] = __m512bh(_mm512_load_si512(y + k * panel + b * block));
#pragma GCC unroll 16
        for (int c = 0; c < channels; c++) {
            const __m512bh left = __m512bh(_mm512_set1_epi32(int(x[k * block + c])));
#pragma GCC unroll 2
            for (int b = 0; b < blocks; b++) total[c][b] = _mm512_dpbf16_ps(total[c][b], left, right[b]);
        }
    }
#pragma GCC unroll 16
    for (int c = 0; c < channels; c++)
#pragma GCC unroll 2
        for (int b = 0; b < blocks; b++) {
            float* const at = sums + b * between + c * block;
            _mm512_storeu_ps(at, fresh ? total[c][b] : _mm512_add_ps(_mm512_loadu_ps(at), total[c][b]));
        }
}

// Adds x y of `pairs` pairs of pixels to sums, or with `fresh` sets them: `channels` channels by `blocks` blocks of
// outputs, which are `between` apart.
template <int channels, int blocks>
inline void multiply(const uint32_t* x, const uint32_t* y, int64_t pairs, const PixelsAhead& ahead, bool fresh,
                     float* sums, int64_t between) {
    if (ahead.from)
        multiply<channels, blocks, true>(x, y, pairs, ahead, fresh, sums, between);
    else
        multiply<channels, blocks, false>(x, y, pairs, ahead, fresh, sums, between);
}

}  // namespace

// Does one thread's share of the work.
struct PairGradient::Worker {
    Worker(const PairGradient& job, int64_t thread, const bf16* x, const ResultGradient& dy, float* sums, char* room)
        : job_(job), shape_(job.shape_), x_(x), dy_(dy), sums_(sums) {
        const Room sizes(job);
        dy_pairs_ = reinterpret_cast<uint32_t*>(room);
        x_pairs_ = reinterpret_cast<uint32_t*>(room += sizes.dy);
        seen_ = reinterpret_cast<Pixels>(room += sizes.x);
        results_ = seen_ + 2 * job.pairs_of_run();
        bias_ = reinterpret_cast<double*>(room += sizes.pixels);
        for (int64_t i = 0; i < shape_.outputs; i++) bias_[i] = 0;
        const int64_t blocks = shape_.channels / block, side = thread % job.sides_;
        first_block_ = blocks * side / job.sides_;
        end_block_ = blocks * (side + 1) / job.sides_;
    }

    void run(int64_t range, bool wants_bias) {
        const int64_t begin = job_.runs() * range / job_.ranges_, end = job_.runs() * (range + 1) / job_.ranges_;
        for (int64_t i = begin; i < end; i++)
            work(place_of(i), place_of(least(i + 1, end - 1)), i == begin, wants_bias);
    }

private:
    struct Place {
        int64_t image, row, rows;
    };

    Place place_of(int64_t run) const {
        const int64_t of_image = job_.runs_of_image(), image = run / of_image * job_.images_of_run(),
                      rows = shape_.out[0];
        if (of_image == 1) return {image, 0, least(job_.images_of_run(), shape_.images - image) * rows};
        const int64_t row = run % of_image * job_.rows_;
        return {image, row, least(job_.rows_, rows - row)};
    }

    void work(const Place& place, const Place& next, bool fresh, bool wants_bias) {
        find_results(place);
        const int64_t images = next.image - place.image, rows = next.row - place.row;
        x_ahead_ = images * x_plane() * shape_.channels + rows * shape_.stride[0] * shape_.in[1] * block;
        dy_ahead_ = images * dy_plane() * shape_.outputs + rows * shape_.out[1] * block;
        for (int64_t output = 0; output < shape_.outputs; output += job_.slab_) {
            const int64_t outputs = least(job_.slab_, shape_.outputs - output);
            bring_dy(output, outputs, wants_bias);
            for (int64_t tap = 0; tap < job_.taps(); tap++) {
                find_seen(place, tap);
                for (int64_t each = first_block_; each < end_block_; each++)
                    multiply_block(each, tap, output, outputs, fresh);
            }
        }
    }

    // Multiplies a block of channels by outputs from `output` on. With the first pixel of the kernel it prefetches its
    // own share of the next run: this block of x, and as many blocks of dy as there are for one of x.
    void multiply_block(int64_t channels, int64_t tap, int64_t output, int64_t outputs, bool fresh) {
        const int64_t block_of_sums = block * block, between = shape_.channels / block * job_.taps() * block_of_sums;
        float* const sums = sums_ + output / block * between + (channels * job_.taps() + tap) * block_of_sums;
        const int64_t x_offset = channels * x_plane() * block, pieces = (pairs_ * 2 + piece - 1) / piece;
        const int64_t share = channels - first_block_, shares = end_block_ - first_block_;
        const int64_t first_dy = outputs / block * share / shares, end_dy = outputs / block * (share + 1) / shares;
        for (int64_t i = 0; i < pieces; i++) {
            const int64_t first = pairs_ * i / pieces, count = pairs_ * (i + 1) / pieces - first;
            const Pixels seen = seen_ + 2 * first, results = results_ + 2 * first;
            pack_x(seen, x_offset, count);
            bool wants_x = tap == 0 && output == 0;
            int64_t next_dy = tap == 0 ? first_dy : end_dy;
            const auto ahead = [&]() -> PixelsAhead {
                if (wants_x) {
                    wants_x = false;
                    return {seen, x_offset + x_ahead_};
                }
                if (next_dy == end_dy) return {};
                return {results, (output / block + next_dy++) * dy_plane() * block + dy_ahead_};
            };
            for (int64_t o = 0; o < outputs; o += panel) {
                const uint32_t* const y = dy_pairs_ + o * pairs_ + first * panel;
                float* const to = sums + o / block * between;
                const bool begins = fresh && i == 0;
                if (outputs - o < panel) {
                    multiply<16, 1>(x_pairs_, y, count, ahead(), begins, to, between);
                    continue;
                }
                for (const int64_t c : {0, 8})
                    multiply<8, 2>(x_pairs_ + c, y, count, ahead(), begins, to + c * block, between);
            }
        }
    }

    void pack_x(Pixels seen, int64_t offset, int64_t pairs) {
        for (int64_t k = 0; k < pairs; k++)
            _mm512_store_si512(x_pairs_ + k * block,
                               side_by_side(load(seen[2 * k], offset), load(seen[2 * k + 1], offset)));
    }

    // Packs the pairs of dy, panel after panel; the last one may be half full.
    void bring_dy(int64_t output, int64_t outputs, bool wants_bias) {
        for (int64_t o = 0; o < outputs; o += block) {
            uint32_t* const to = dy_pairs_ + o / panel * panel * pairs_ + o % panel;
            pack_dy((output + o) * dy_plane(), to);
            if (wants_bias) add_bias(to, bias_ + output + o);
        }
    }

    void pack_dy(int64_t offset, uint32_t* to) {
        const bool closes = dy_.result;
        for (int64_t k = 0; k < pairs_; k++) {
            const __m256i first = closes ? pass(results_[2 * k], offset) : load(results_[2 * k], offset);
            const __m256i second = closes ? pass(results_[2 * k + 1], offset) : load(results_[2 * k + 1], offset);
            _mm512_store_si512(to + k * panel, side_by_side(first, second));
        }
    }

    // Computes, writes and returns a pixel of the gradient before a ReLU.
    __m256i pass(const bf16* pixel, int64_t offset) const {
        if (!pixel) return _mm256_setzero_si256();
        const int64_t at = pixel - dy_.passed + offset;
        // A bfloat16 is positive if its bits as an integer are.
        const __mmask16 positive = _mm256_cmpgt_epi16_mask(load(dy_.result, at), _mm256_setzero_si256());
        const __m256i passed = _mm256_maskz_loadu_epi16(positive, dy_.values + at);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(dy_.passed + at), passed);
        return passed;
    }

    void add_bias(const uint32_t* y, double* sums) const {
        const __m512bh ones = __m512bh(_mm512_set1_epi32(0x3f803f80));
        __m512 total = _mm512_setzero_ps();
        for (int64_t k = 0; k < pairs_; k++)
            total = _mm512_dpbf16_ps(total, ones, __m512bh(_mm512_load_si512(y + k * panel)));
        alignas(64) float lanes[block];
        _mm512_store_ps(lanes, total);
        for (int64_t i = 0; i < block; i++) sums[i] += double(lanes[i]);
    }

    void find_results(const Place& place) {
        const int64_t count = place.rows * shape_.out[1], size = dy_plane() * shape_.outputs;
        const bf16* image = dy_.passed + place.image * size;
        for (int64_t i = 0, at = place.row * shape_.out[1]; i < count; i++) {
            results_[i] = image + at * block;
            if (++at < dy_plane()) continue;
            at = 0;
            image += size;
        }
        pairs_ = (count + 1) / 2;
        if (count % 2) results_[count] = nullptr;
    }

    // Sets seen_ to what pixel `tap` of the kernel sees of x.
    void find_seen(const Place& place, int64_t tap) {
        const int64_t down = tap / shape_.kernel[1] * shape_.step[0] - shape_.pad[0];
        const int64_t right = tap % shape_.kernel[1] * shape_.step[1] - shape_.pad[1];
        int64_t count = 0;
        for (int64_t i = 0; i < place.rows; i++) {
            const int64_t row = place.row + i, image = place.image + row / shape_.out[0];
            const int64_t y = row % shape_.out[0] * shape_.stride[0] + down;
            const bf16* const from = x_ + image * x_plane() * shape_.channels + y * shape_.in[1] * block;
            for (int64_t column = 0; column < shape_.out[1]; column++, count++) {
                const int64_t z = column * shape_.stride[1] + right;
                const bool inside = y >= 0 && y < shape_.in[0] && z >= 0 && z < shape_.in[1];
                seen_[count] = inside ? from + z * block : nullptr;
            }
        }
        if (count % 2) seen_[count] = nullptr;
    }

    int64_t x_plane() const { return shape_.in[0] * shape_.in[1]; }
    int64_t dy_plane() const { return shape_.out[0] * shape_.out[1]; }

    const PairGradient& job_;
    const ConvolutionShape& shape_;
    const bf16* x_;
    const ResultGradient dy_;
    float* sums_;
    uint32_t *dy_pairs_, *x_pairs_;
    Pixels seen_, results_;
    double* bias_;
    int64_t first_block_, end_block_;     // of channels
    int64_t pairs_, x_ahead_, dy_ahead_;  // pairs of this run; distances from it to the next
};

bool PairGradient::available() { return may_use(Isa::avx512_bf16); }

void PairGradient::work(int64_t thread, const bf16* x, const ResultGradient& dy, float* weights, bool wants_bias,
                        char* scratch) const {
    const int64_t range = thread / sides_;
    if (range >= ranges_) return;
    float* const to = ranges_ > 1 ? sums(scratch, range) : weights;
    Worker(*this, thread, x, dy, to, room(scratch, thread)).run(range, wants_bias);
}

// Sums the ranges' sums, a share of them in each thread.
void PairGradient::collect(int64_t thread, float* weights, float* bias, char* scratch) const {
    const int64_t blocks = floats() / block, begin = blocks * thread / threads_, end = blocks * (thread + 1) / threads_;
    for (int64_t i = begin * block; ranges_ > 1 && i < end * block; i += block) {
        __m512 sum = _mm512_load_ps(sums(scratch, 0) + i);
        for (int64_t range = 1; range < ranges_; range++)
            sum = _mm512_add_ps(sum, _mm512_load_ps(sums(scratch, range) + i));
        _mm512_storeu_ps(weights + i, sum);
    }
    if (thread > 0 || !bias) return;
    const Room sizes(*this);
    const auto of_range = [&](int64_t range) {
        return reinterpret_cast<const double*>(room(scratch, range * sides_) + sizes.all() - sizes.bias);
    };
    collect_bias(shape_.outputs, ranges_, of_range, false, bias);
}

void PairGradient::run(const bf16* x, const ResultGradient& given, float* weights, float* bias, char* scratch) const {
    share_out(
        shape_, given, threads_, sides_,
        [&](int64_t thread, const ResultGradient& dy) { work(thread, x, dy, weights, bias, scratch); },
        [&](int64_t thread) { collect(thread, weights, bias, scratch); });
}

}  // namespace engine

#else

namespace engine {

bool PairGradient::available() { return false; }
void PairGradient::run(const bf16*, const ResultGradient&, float*, float*, char*) const {}

}  // namespace engine
#endif
