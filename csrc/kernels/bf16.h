// bfloat16 is the upper half of a float32. Our own kernels read it by number() and write it by store(), which also take
// float, and compute in float32.
#pragma once

#include <cstdint>
#include <cstring>

namespace engine {

struct bf16 {
    uint16_t bits;
};

inline __attribute__((always_inline)) float number(float value) { return value; }

inline __attribute__((always_inline)) float number(bf16 value) {
    const uint32_t bits = uint32_t(value.bits) << 16;
    float result;
    std::memcpy(&result, &bits, sizeof(result));
    return result;
}

inline __attribute__((always_inline)) void store(float value, float& into) { into = value; }

// Rounds to nearest, ties to even. NaN stays NaN.
inline __attribute__((always_inline)) void store(float value, bf16& into) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    const uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
    const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
    into.bits = uint16_t((is_nan ? bits | 0x400000 : rounded) >> 16);
}

}  // namespace engine
