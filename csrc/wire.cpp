#include "wire.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#define ENGINE_VECTORISED __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define ENGINE_VECTORISED
#endif

namespace engine {
namespace {

constexpr int64_t kBlock = 2048;  // floats that stay in the first-level cache while rows are added

inline __attribute__((always_inline)) float widen(uint16_t value) {
    const uint32_t bits = uint32_t(value) << 16;
    float result;
    std::memcpy(&result, &bits, sizeof result);
    return result;
}

// To nearest, ties to even; a NaN stays one (rounding could carry it into infinity).
inline __attribute__((always_inline)) uint16_t narrow(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const uint32_t quiet = (bits >> 16) | 0x40;
    return uint16_t((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

// The loss of a value that is not finite would be NaN for ever.
inline __attribute__((always_inline)) float lost(float value, uint16_t packed) {
    const float difference = value - widen(packed);
    return difference - difference == 0 ? difference : 0;
}

ENGINE_VECTORISED void pack(const float* __restrict values, uint16_t* __restrict packed, int64_t count) {
    for (int64_t i = 0; i < count; ++i) packed[i] = narrow(values[i]);
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

void sum_bf16(const uint16_t* rows, int64_t parts, int64_t stride, float* residual, uint16_t* packed, int64_t count) {
    float sum[kBlock];
    for (int64_t begin = 0; begin < count; begin += kBlock) {
        const int64_t size = std::min(kBlock, count - begin);
        std::fill(sum, sum + size, 0.f);
        for (int64_t part = 0; part < parts; ++part) add(rows + part * stride + begin, sum, size);
        pack(sum, packed + begin, size);
        if (residual) keep(sum, packed + begin, residual + begin, size);
    }
}

void unpack_bf16(const uint16_t* packed, float* values, int64_t count) { unpack(packed, values, count); }

}  // namespace engine
