// Sixteen numbers of a row, float32 or bf16 in memory, as one vector of float32: GCC's own, which each clone keeps in
// registers of its width, where loops over so few numbers may stay scalar.
#pragma once

#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/vectorised.h"

namespace engine {

constexpr int64_t sixteen = 16;
typedef float Sixteen __attribute__((vector_size(4 * sixteen)));

ENGINE_INLINE void read(const float* from, Sixteen& into) { __builtin_memcpy(&into, from, sizeof(into)); }

ENGINE_INLINE void read(const bf16* from, Sixteen& into) {
    typedef uint32_t Bits __attribute__((vector_size(4 * sixteen)));
    typedef uint16_t Halves __attribute__((vector_size(2 * sixteen)));
    Halves halves;
    __builtin_memcpy(&halves, from, sizeof(halves));
    into = Sixteen(__builtin_convertvector(halves, Bits) << 16);
}

ENGINE_INLINE void write(const Sixteen& values, float* into) { __builtin_memcpy(into, &values, sizeof(values)); }

// As store() of bf16.h.
ENGINE_INLINE void write(const Sixteen& values, bf16* into) {
    typedef uint32_t Bits __attribute__((vector_size(4 * sixteen)));
    typedef uint16_t Halves __attribute__((vector_size(2 * sixteen)));
    const Bits bits = Bits(values), rounded = bits + 0x7fff + (bits >> 16 & 1), quiet = bits | 0x400000;
    const Halves halves = __builtin_convertvector(((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded) >> 16, Halves);
    __builtin_memcpy(into, &halves, sizeof(halves));
}

// work(which, at) for a row in pieces of sixteen: which.read(from + at, vector) and which.write(vector, into + at) take
// sixteen numbers, or, of the last piece, those that are left.
struct Whole {
    template <typename T>
    ENGINE_INLINE void read(const T* from, Sixteen& into) const {
        engine::read(from, into);
    }
    template <typename T>
    ENGINE_INLINE void write(const Sixteen& values, T* into) const {
        engine::write(values, into);
    }
};

struct Part {
    int64_t count;
    template <typename T>
    ENGINE_INLINE void read(const T* from, Sixteen& into) const {
        T padded[sixteen] = {};
        __builtin_memcpy(padded, from, size_t(count) * sizeof(T));
        engine::read(padded, into);
    }
    template <typename T>
    ENGINE_INLINE void write(const Sixteen& values, T* into) const {
        T padded[sixteen];
        engine::write(values, padded);
        __builtin_memcpy(into, padded, size_t(count) * sizeof(T));
    }
};

template <typename Work>
ENGINE_INLINE void in_sixteens(int64_t length, const Work& work) {
    int64_t at = 0;
    for (; at + sixteen <= length; at += sixteen) work(Whole{}, at);
    if (at < length) work(Part{length - at}, at);
}

}  // namespace engine
