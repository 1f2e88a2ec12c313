#include "kernels/resize_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/isa.h"
#include "kernels/whole.h"

#if defined(__x86_64__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12 warns of its own intrinsics
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#endif

namespace engine {

namespace {

// Weights are integers, of which the sum is `one`.
constexpr int weight_bits = 14;
constexpr int one = 1 << weight_bits;
constexpr int group = 4;  // pixels that are multiplied at once; weights are filled up with zeros to a multiple of it

// Returns sin(pi x) for |x| <= 3, by its series. (The C library's differs in its last bit between processors.)
double sine_of_half_turns(double x) {
    x -= 2 * std::floor(x / 2 + 0.5);  // -1..1
    if (x > 0.5) x = 1 - x;
    if (x < -0.5) x = -1 - x;
    const double angle = x * 3.14159265358979323846, square = angle * angle;
    double series = 1;
    for (int n = 20; n >= 2; n -= 2) series = 1 - square / (n * (n + 1)) * series;
    return angle * series;
}

double sinc(double x) { return x == 0 ? 1 : sine_of_half_turns(x) / (x * 3.14159265358979323846); }

double support_of(Filter filter) {
    switch (filter) {
        case Filter::nearest:
        case Filter::box:
            return 0.5;
        case Filter::linear:
            return 1;
        case Filter::cubic:
            return 2;
        default:
            return 3;
    }
}

double weight_at(Filter filter, double x) {
    if (filter == Filter::box) return x > -0.5 && x <= 0.5 ? 1 : 0;
    const double far = std::fabs(x);
    switch (filter) {
        case Filter::linear:
            return far < 1 ? 1 - far : 0;
        case Filter::cubic:  // Keys, "Cubic convolution interpolation for digital image processing", with a = -0.5
            if (far < 1) return (1.5 * far - 2.5) * far * far + 1;
            return far < 2 ? ((-0.5 * far + 2.5) * far - 4) * far + 2 : 0;
        default:
            return far < 3 ? sinc(x) * sinc(x / 3) : 0;
    }
}

// Sets the weights of one pixel of the result, as integers. Their running sum is rounded, which keeps the sum exact
// even of very many small ones. Zeros at both ends are left out.
void round_weights(const std::vector<double>& wanted, int first, AxisWeights& axis, int i) {
    double total = 0;
    for (const double weight : wanted) total += weight;
    int16_t* out = axis.weights.data() + std::ptrdiff_t(i) * axis.stride;
    double running = 0;
    int before = 0, zeros = 0, count = 0;
    for (const double weight : wanted) {
        running += weight / total;
        const int so_far = int(whole(std::floor(running * one + 0.5)));
        out[count] = int16_t(std::clamp(so_far - before, -32768, 32767));
        before = so_far;
        if (count == 0 && out[0] == 0) {
            ++zeros;
        } else {
            ++count;
        }
    }
    while (count > 1 && out[count - 1] == 0) --count;
    std::fill(out + count, out + axis.stride, int16_t(0));
    axis.firsts[std::size_t(i)] = first + zeros;
    axis.counts[std::size_t(i)] = count;
}

uint8_t to_byte(int sum) { return uint8_t(std::clamp((sum + one / 2) >> weight_bits, 0, 255)); }

// Writes the pixels of a row, each a sum of neighbours. pixels: those from axis.begin on.
void resize_row_plain(const uint8_t* pixels, const AxisWeights& axis, int count, uint8_t* out) {
    for (int i = 0; i < count; ++i, out += 4) {
        const uint8_t* source = pixels + 4 * (axis.firsts[std::size_t(i)] - axis.begin);
        const int16_t* weights = axis.weights_of(i);
        int sums[4] = {};
        for (int k = 0; k < axis.counts[std::size_t(i)]; ++k)
            for (int c = 0; c < 4; ++c) sums[c] += weights[k] * source[4 * k + c];
        for (int c = 0; c < 4; ++c) out[c] = to_byte(sums[c]);
    }
}

// Writes a row of which each byte is a sum over rows. count: how many rows, an even number.
void blend_rows_plain(const uint8_t* const* rows, const int16_t* weights, int count, int bytes, uint8_t* out) {
    for (int i = 0; i < bytes; ++i) {
        int sum = 0;
        for (int k = 0; k < count; ++k) sum += weights[k] * rows[k][i];
        out[i] = to_byte(sum);
    }
}

#if defined(__x86_64__)
// Does the same as resize_row_plain() for two rows at once, one in each half of a register.
__attribute__((target("avx2"))) void resize_rows_avx2(const uint8_t* upper, const uint8_t* lower,
                                                      const AxisWeights& axis, int count, uint8_t* upper_out,
                                                      uint8_t* lower_out) {
    // Turns two pixels into pairs of 16 bits for each colour, which one instruction multiplies and adds.
    const __m256i front = _mm256_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1,  //
                                           0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1);
    const __m256i back = _mm256_add_epi8(front, _mm256_set1_epi16(8));
    const __m256i half = _mm256_set1_epi32(one / 2);
    const int16_t* weights = axis.weights.data();
    for (int i = 0; i < count; ++i, upper_out += 4, lower_out += 4, weights += axis.stride) {
        const std::ptrdiff_t at = 4 * std::ptrdiff_t(axis.firsts[std::size_t(i)] - axis.begin);
        const int groups = (axis.counts[std::size_t(i)] + group - 1) / group;
        __m256i sums = half;
        for (int k = 0; k < groups; ++k) {
            const __m128i up = _mm_loadu_si128(reinterpret_cast<const __m128i*>(upper + at + 16 * k));
            const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(lower + at + 16 * k));
            const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(up), low, 1);
            int pairs[2];
            std::memcpy(pairs, weights + group * k, 8);
            const __m256i first = _mm256_madd_epi16(_mm256_shuffle_epi8(both, front), _mm256_set1_epi32(pairs[0]));
            const __m256i second = _mm256_madd_epi16(_mm256_shuffle_epi8(both, back), _mm256_set1_epi32(pairs[1]));
            sums = _mm256_add_epi32(sums, _mm256_add_epi32(first, second));
        }
        sums = _mm256_srai_epi32(sums, weight_bits);
        sums = _mm256_packs_epi32(sums, sums);
        sums = _mm256_packus_epi16(sums, sums);
        const int up = _mm_cvtsi128_si32(_mm256_castsi256_si128(sums));
        const int low = _mm_cvtsi128_si32(_mm256_extracti128_si256(sums, 1));
        std::memcpy(upper_out, &up, 4);
        std::memcpy(lower_out, &low, 4);
    }
}

// Does the same for four rows, one in each quarter of a register.
__attribute__((target("avx512f,avx512bw"))) void resize_rows_avx512(const uint8_t* const* rows, const AxisWeights& axis,
                                                                    int count, uint8_t* const* outs) {
    // The same order as above, four bytes in a number.
    const __m512i front = _mm512_setr4_epi32(int(0xFF04FF00u), int(0xFF05FF01u), int(0xFF06FF02u), int(0xFF07FF03u));
    const __m512i back = _mm512_add_epi8(front, _mm512_set1_epi16(8));
    const __m512i half = _mm512_set1_epi32(one / 2);
    const uint8_t *const first = rows[0], *const second = rows[1], *const third = rows[2], *const fourth = rows[3];
    uint8_t *const first_out = outs[0], *const second_out = outs[1], *const third_out = outs[2],
                   *const fourth_out = outs[3];
    const int16_t* weights = axis.weights.data();
    const auto load = [](const uint8_t* at) __attribute__((target("avx512f,avx512bw"), always_inline)) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    };
    alignas(64) int pixels[16];  // the first of each quarter counts
    for (int i = 0; i < count; ++i, weights += axis.stride) {
        const std::ptrdiff_t at = 4 * std::ptrdiff_t(axis.firsts[std::size_t(i)] - axis.begin);
        const int groups = (axis.counts[std::size_t(i)] + group - 1) / group;
        __m512i sums = half;
        for (int k = 0; k < groups; ++k) {
            const std::ptrdiff_t from = at + 16 * k;
            __m512i all = _mm512_castsi128_si512(load(first + from));
            all = _mm512_inserti32x4(all, load(second + from), 1);
            all = _mm512_inserti32x4(all, load(third + from), 2);
            all = _mm512_inserti32x4(all, load(fourth + from), 3);
            int pairs[2];
            std::memcpy(pairs, weights + group * k, 8);
            const __m512i low = _mm512_madd_epi16(_mm512_shuffle_epi8(all, front), _mm512_set1_epi32(pairs[0]));
            const __m512i high = _mm512_madd_epi16(_mm512_shuffle_epi8(all, back), _mm512_set1_epi32(pairs[1]));
            sums = _mm512_add_epi32(sums, _mm512_add_epi32(low, high));
        }
        sums = _mm512_srai_epi32(sums, weight_bits);
        sums = _mm512_packs_epi32(sums, sums);
        sums = _mm512_packus_epi16(sums, sums);
        _mm512_store_si512(pixels, sums);
        std::memcpy(first_out + 4 * std::ptrdiff_t(i), pixels, 4);
        std::memcpy(second_out + 4 * std::ptrdiff_t(i), pixels + 4, 4);
        std::memcpy(third_out + 4 * std::ptrdiff_t(i), pixels + 8, 4);
        std::memcpy(fourth_out + 4 * std::ptrdiff_t(i), pixels + 12, 4);
    }
}

// Writes up to 31 bytes more than it is asked for.
__attribute__((target("avx2"))) void blend_rows_avx2(const uint8_t* const* rows, const int16_t* weights, int count,
                                                     int bytes, uint8_t* out) {
    const __m256i zero = _mm256_setzero_si256(), half = _mm256_set1_epi32(one / 2);
    for (int i = 0; i < bytes; i += 32) {
        __m256i a = half, b = half, c = half, d = half;
        for (int k = 0; k < count; k += 2) {
            int pair;
            std::memcpy(&pair, weights + k, 4);
            const __m256i factors = _mm256_set1_epi32(pair);
            const __m256i upper = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[k] + i));
            const __m256i lower = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[k + 1] + i));
            const __m256i low = _mm256_unpacklo_epi8(upper, lower), high = _mm256_unpackhi_epi8(upper, lower);
            a = _mm256_add_epi32(a, _mm256_madd_epi16(_mm256_unpacklo_epi8(low, zero), factors));
            b = _mm256_add_epi32(b, _mm256_madd_epi16(_mm256_unpackhi_epi8(low, zero), factors));
            c = _mm256_add_epi32(c, _mm256_madd_epi16(_mm256_unpacklo_epi8(high, zero), factors));
            d = _mm256_add_epi32(d, _mm256_madd_epi16(_mm256_unpackhi_epi8(high, zero), factors));
        }
        const __m256i front = _mm256_packs_epi32(_mm256_srai_epi32(a, weight_bits), _mm256_srai_epi32(b, weight_bits));
        const __m256i back = _mm256_packs_epi32(_mm256_srai_epi32(c, weight_bits), _mm256_srai_epi32(d, weight_bits));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm256_packus_epi16(front, back));
    }
}
#endif

}  // namespace

void make_axis(Filter filter, double low, double high, int length, int size, int from, int count, bool mirrored,
               std::vector<double>& wanted, AxisWeights& axis) {
    const double scale = (high - low) / size, wide = std::max(1.0, scale), support = support_of(filter) * wide;
    axis.stride = (2 * int(whole(std::ceil(support))) + 1 + group - 1) / group * group;
    axis.firsts.resize(std::size_t(count));
    axis.counts.resize(std::size_t(count));
    axis.weights.resize(std::size_t(count) * std::size_t(axis.stride));
    axis.begin = length;
    axis.end = axis.most = 0;
    double nearest = low + scale * 0.5;  // summed step by step, as Pillow does
    for (int step = 0; filter == Filter::nearest && step < from; ++step) nearest += scale;
    for (int step = 0; step < count; ++step, nearest += scale) {
        const int i = mirrored ? count - 1 - step : step;
        const double centre = low + (from + step + 0.5) * scale;
        int first = std::max(0, int(whole(centre - support + 0.5))),
            last = std::min(length, int(whole(centre + support + 0.5)));
        wanted.clear();
        if (filter == Filter::nearest) {
            first = std::clamp(int(whole(nearest)), 0, length - 1);
            wanted.push_back(1);
        } else {
            for (int at = first; at < last; ++at) wanted.push_back(weight_at(filter, (at - centre + 0.5) / wide));
        }
        round_weights(wanted, first, axis, i);
        axis.begin = std::min(axis.begin, axis.firsts[std::size_t(i)]);
        axis.end = std::max(axis.end, axis.firsts[std::size_t(i)] + axis.counts[std::size_t(i)]);
        axis.most = std::max(axis.most, axis.counts[std::size_t(i)]);
    }
}

int rows_at_once(bool plain) {
#if defined(__x86_64__)
    if (!plain && may_use(Isa::avx512)) return 4;
#endif
    (void)plain;
    return 2;
}

void resize_rows(const uint8_t* const* rows, int number, const AxisWeights& axis, int count, uint8_t* const* outs,
                 bool plain) {
    if (axis.most == 1) {
        for (int i = 0; i < count; ++i) {
            const std::ptrdiff_t at = 4 * std::ptrdiff_t(axis.firsts[std::size_t(i)] - axis.begin);
            for (int k = 0; k < number; ++k) std::memcpy(outs[k] + 4 * std::ptrdiff_t(i), rows[k] + at, 4);
        }
        return;
    }
#if defined(__x86_64__)
    if (number == 4) return resize_rows_avx512(rows, axis, count, outs);
    if (!plain && may_use(Isa::avx2)) return resize_rows_avx2(rows[0], rows[1], axis, count, outs[0], outs[1]);
#endif
    (void)plain;
    for (int k = 0; k < number; ++k) resize_row_plain(rows[k], axis, count, outs[k]);
}

void blend_rows(const uint8_t* const* rows, const int16_t* weights, int count, int bytes, uint8_t* out, bool plain) {
#if defined(__x86_64__)
    if (!plain && may_use(Isa::avx2)) return blend_rows_avx2(rows, weights, count, bytes, out);
#endif
    (void)plain;
    blend_rows_plain(rows, weights, count, bytes, out);
}

}  // namespace engine
