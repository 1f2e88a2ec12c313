// Walks rows of float32 or bf16 numbers by vectors of float32: of sixteen, or of eight if no more are left. A vector is
// GCC's own if a register of the processor holds it, else a pair of smaller ones: GCC passes a vector that it must cut
// through memory.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/bf16.h"
#include "kernels/isa.h"
#include "kernels/vectorised.h"

namespace engine {

template <typename T, int64_t count>
struct Register {
    typedef T Type __attribute__((vector_size(sizeof(T) * count)));
};

template <typename Half>
struct Pair {
    Half low, high;

    ENGINE_INLINE friend Pair operator+(const Pair& a, const Pair& b) { return {a.low + b.low, a.high + b.high}; }
    ENGINE_INLINE friend Pair operator-(const Pair& a, const Pair& b) { return {a.low - b.low, a.high - b.high}; }
    ENGINE_INLINE friend Pair operator*(const Pair& a, const Pair& b) { return {a.low * b.low, a.high * b.high}; }
    ENGINE_INLINE friend Pair operator*(float a, const Pair& b) { return {a * b.low, a * b.high}; }
    ENGINE_INLINE friend Pair& operator+=(Pair& a, const Pair& b) { return a = a + b; }
};

// The vector of `count` numbers, if a register holds `most`.
template <int64_t count, int64_t most, bool fits = (count <= most)>
struct VectorOf : Register<float, count> {};
template <int64_t count, int64_t most>
struct VectorOf<count, most, false> {
    using Type = Pair<typename VectorOf<count / 2, most>::Type>;
};

template <typename Vector>
constexpr int64_t count_in = sizeof(Vector) / sizeof(float);

template <typename T, typename Vector>
ENGINE_INLINE void read(const T* from, Vector& into) {
    if constexpr (std::is_same_v<T, float>) {
        __builtin_memcpy(&into, from, sizeof(into));
    } else {
        typename Register<uint16_t, count_in<Vector>>::Type halves;
        __builtin_memcpy(&halves, from, sizeof(halves));
        using Bits = typename Register<uint32_t, count_in<Vector>>::Type;
        into = Vector(__builtin_convertvector(halves, Bits) << 16);
    }
}

template <typename T, typename Half>
ENGINE_INLINE void read(const T* from, Pair<Half>& into) {
    read(from, into.low);
    read(from + count_in<Half>, into.high);
}

template <typename Vector, typename T>
ENGINE_INLINE void write(const Vector& values, T* into) {
    if constexpr (std::is_same_v<T, float>) {
        __builtin_memcpy(into, &values, sizeof(values));
    } else {  // rounds as store() of bf16.h does
        using Bits = typename Register<uint32_t, count_in<Vector>>::Type;
        using Halves = typename Register<uint16_t, count_in<Vector>>::Type;
        const Bits bits = Bits(values), rounded = bits + 0x7fff + (bits >> 16 & 1), quiet = bits | 0x400000;
        const Bits kept = ((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded) >> 16;
        const Halves halves = __builtin_convertvector(kept, Halves);
        __builtin_memcpy(into, &halves, sizeof(halves));
    }
}

template <typename Half, typename T>
ENGINE_INLINE void write(const Pair<Half>& values, T* into) {
    write(values.low, into);
    write(values.high, into + count_in<Half>);
}

// A piece of a row: read(from, vector) and write(vector, into) access all numbers of its vector (Whole), or, in the
// last piece, those that are left (Rest).
template <typename VectorType>
struct Whole {
    using Vector = VectorType;
    template <typename T>
    ENGINE_INLINE void read(const T* from, Vector& into) const {
        engine::read(from, into);
    }
    template <typename T>
    ENGINE_INLINE void write(const Vector& values, T* into) const {
        engine::write(values, into);
    }
};

template <typename VectorType>
struct Rest {
    using Vector = VectorType;
    int64_t count;
    template <typename T>
    ENGINE_INLINE void read(const T* from, Vector& into) const {
        T padded[count_in<Vector>] = {};
        __builtin_memcpy(padded, from, size_t(count) * sizeof(T));
        engine::read(padded, into);
    }
    template <typename T>
    ENGINE_INLINE void write(const Vector& values, T* into) const {
        T padded[count_in<Vector>];
        engine::write(values, padded);
        __builtin_memcpy(into, padded, size_t(count) * sizeof(T));
    }
};

// Does what in_sixteens() does, with registers of `most` numbers.
template <int64_t most, typename Work>
ENGINE_INLINE void in_registers(int64_t length, const Work& work) {
    using Sixteen = typename VectorOf<16, most>::Type;
    using Eight = typename VectorOf<8, most>::Type;
    int64_t at = 0;
    for (; at + 16 <= length; at += 16) work(Whole<Sixteen>{}, at);
    if (at + 8 <= length) {
        work(Whole<Eight>{}, at);
        at += 8;
    }
    if (at < length) work(Rest<Eight>{length - at}, at);
}

#if defined(__x86_64__)
// Work is passed by value, so that the compiler knows that stores do not change what it holds.
template <typename Work>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))) void in_avx512(int64_t length, Work work) {
    in_registers<16>(length, work);
}
template <typename Work>
__attribute__((target("avx2"))) void in_avx2(int64_t length, Work work) {
    in_registers<8>(length, work);
}
#endif

// Calls work(piece, where it begins) for all pieces of a row of `length` numbers, compiled for this processor's
// registers. work: a lambda with ENGINE_BODY that captures by value.
template <typename Work>
void in_sixteens(int64_t length, const Work& work) {
#if defined(__x86_64__)
    if (may_use(Isa::avx512)) return in_avx512(length, work);
    if (may_use(Isa::avx2)) return in_avx2(length, work);
#endif
    in_registers<4>(length, work);
}

}  // namespace engine
