#include "wire.h"

#include <algorithm>
#include <cstring>

#include "kernels/vectorised.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace engine {
namespace {

constexpr int64_t block_floats = 2048;  // summed at a time, so that they stay in the first-level cache

inline __attribute__((always_inline)) float widen(uint16_t value) {
    const uint32_t bits = uint32_t(value) << 16;
    float result;
    std::memcpy(&result, &bits, sizeof result);
    return result;
}

// Rounds to nearest, ties to even. A NaN stays one: rounding as a number could make it infinity.
inline __attribute__((always_inline)) uint16_t narrow(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1), quiet = bits | 0x400000;
    return uint16_t((int32_t(bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded) >> 16);
}

// Returns what rounding has lost of a value; 0 if the value is not finite, or the residual would be NaN for ever.
inline __attribute__((always_inline)) float lost(float value, uint16_t packed) {
    const float difference = value - widen(packed);
    return difference - difference == 0 ? difference : 0;
}

// Rounds sixteen values; the results are the upper halves of words. The compiler's own code for a loop over narrow()
// has twice as many instructions.
using Words = uint32_t __attribute__((vector_size(64)));
using Signed = int32_t __attribute__((vector_size(64)));
using Halves = uint16_t __attribute__((vector_size(32)));
using Floats = float __attribute__((vector_size(64)));
constexpr int64_t vector_floats = 16, floats_ahead = 512;  // ahead: how far memory is prefetched

inline __attribute__((always_inline)) void narrow(const float* values, Words& rounded) {
    Words bits;
    std::memcpy(&bits, values, sizeof bits);
    const Words even = bits + 0x7fff + ((bits >> 16) & 1), quiet = bits | 0x400000;
    rounded = Signed(bits & 0x7fffffff) > 0x7f800000 ? quiet : even;
}

ENGINE_VECTORISED void pack(const float* __restrict values, uint16_t* __restrict packed, int64_t count) {
    int64_t i = 0;
    for (; i + vector_floats <= count; i += vector_floats) {
        __builtin_prefetch(values + i + floats_ahead);
        __builtin_prefetch(packed + i + floats_ahead, 1);
        Words rounded;
        narrow(values + i, rounded);
        const Halves halves = __builtin_convertvector(rounded >> 16, Halves);
        std::memcpy(packed + i, &halves, sizeof halves);
    }
    for (; i < count; ++i) packed[i] = narrow(values[i]);
}

// Does what pack() and then add() do, but in registers.
ENGINE_VECTORISED void add_rounded(const float* __restrict values, float* __restrict sum, int64_t count) {
    int64_t i = 0;
    for (; i + vector_floats <= count; i += vector_floats) {
        __builtin_prefetch(values + i + floats_ahead);
        Words rounded;
        narrow(values + i, rounded);
        rounded &= 0xffff0000;
        Floats total, value;
        std::memcpy(&value, &rounded, sizeof value);
        std::memcpy(&total, sum + i, sizeof total);
        total += value;
        std::memcpy(sum + i, &total, sizeof total);
    }
    for (; i < count; ++i) sum[i] += widen(narrow(values[i]));
}

ENGINE_VECTORISED void pack_keeping(const float* __restrict values, float* __restrict residual,
                                    uint16_t* __restrict packed, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
        const float value = values[i] + residual[i];
        packed[i] = narrow(value);
        residual[i] = lost(value, packed[i]);
    }
}

ENGINE_VECTORISED void add(const uint16_t* __restrict packed, float* __restrict sum, int64_t count) {
    for (int64_t i = 0; i < count; ++i) sum[i] += widen(packed[i]);
}

ENGINE_VECTORISED void add(const float* __restrict values, float* __restrict sum, int64_t count) {
    for (int64_t i = 0; i < count; ++i) sum[i] += values[i];
}

ENGINE_VECTORISED void keep(const float* __restrict sum, const uint16_t* __restrict packed, float* __restrict residual,
                            int64_t count) {
    for (int64_t i = 0; i < count; ++i) residual[i] += lost(sum[i], packed[i]);
}

ENGINE_VECTORISED void unpack(const uint16_t* __restrict packed, float* __restrict values, int64_t count) {
    for (int64_t i = 0; i < count; ++i) values[i] = widen(packed[i]);
}

}  // namespace

void pack_bf16(const float* values, float* residual, uint16_t* packed, int64_t count) {
    residual ? pack_keeping(values, residual, packed, count) : pack(values, packed, count);
}

void sum_bf16(const uint16_t* rows, int64_t row_count, int64_t stride, int64_t own, const float* values,
              float* residual, uint16_t* packed, int64_t count) {
    float sum[block_floats];
    uint16_t mine[block_floats];
    for (int64_t begin = 0; begin < count; begin += block_floats) {
        const int64_t size = std::min(block_floats, count - begin);
        std::fill(sum, sum + size, 0.f);
        for (int64_t row = 0; row < row_count; ++row) {
            if (row != own) {
                add(rows + row * stride + begin, sum, size);
            } else if (residual) {
                pack_keeping(values + begin, residual + begin, mine, size);
                add(mine, sum, size);
            } else {
                add_rounded(values + begin, sum, size);
            }
        }
        pack(sum, packed + begin, size);
        if (residual) keep(sum, packed + begin, residual + begin, size);
    }
}

template <typename Row>
static void sum_into(const Row* rows, int64_t row_count, int64_t stride, int64_t own, float* values, int64_t count) {
    float sum[block_floats];
    for (int64_t begin = 0; begin < count; begin += block_floats) {
        const int64_t size = std::min(block_floats, count - begin);
        std::fill(sum, sum + size, 0.f);
        for (int64_t row = 0; row < row_count; ++row) {
            if (row == own)
                add(values + begin, sum, size);
            else
                add(rows + row * stride + begin, sum, size);
        }
        std::memcpy(values + begin, sum, size_t(size) * sizeof(float));
    }
}

void sum_bf16_rows(const uint16_t* rows, int64_t row_count, int64_t stride, int64_t own, float* values, int64_t count) {
    sum_into(rows, row_count, stride, own, values, count);
}

void sum_rows(const float* rows, int64_t row_count, int64_t stride, int64_t own, float* values, int64_t count) {
    sum_into(rows, row_count, stride, own, values, count);
}

void unpack_bf16(const uint16_t* packed, float* values, int64_t count) { unpack(packed, values, count); }

void unpack_bf16_away(const uint16_t* packed, float* values, int64_t count) {
#if defined(__x86_64__)
    constexpr int64_t line = 16;  // floats of a cache line: streaming stores should write whole lines
    const int64_t to_line = int64_t((64 - reinterpret_cast<uintptr_t>(values) % 64) % 64 / sizeof(float));
    const int64_t head = std::min(count, to_line), whole = head + (count - head) / line * line;
    unpack(packed, values, head);
    const __m128i zero = _mm_setzero_si128();
    for (int64_t i = head; i < whole; i += 8) {
        const __m128i eight = _mm_loadu_si128(reinterpret_cast<const __m128i*>(packed + i));
        _mm_stream_ps(values + i, _mm_castsi128_ps(_mm_unpacklo_epi16(zero, eight)));
        _mm_stream_ps(values + i + 4, _mm_castsi128_ps(_mm_unpackhi_epi16(zero, eight)));
    }
    _mm_sfence();
    unpack(packed + whole, values + whole, count - whole);
#else
    unpack(packed, values, count);
#endif
}

}  // namespace engine
