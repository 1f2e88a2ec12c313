// ENGINE_VECTORISED compiles a function once for each vector width; the loader picks the widest that the processor has.
#pragma once

#include <cmath>

#if defined(__x86_64__)
// The C library also has these for vectors, with errors below 4 ulp, but its header declares that only for -ffast-math.
extern "C" {
__attribute__((simd("notinbranch"), const)) float cosf(float) noexcept;
__attribute__((simd("notinbranch"), const)) float expf(float) noexcept;
__attribute__((simd("notinbranch"), const)) float logf(float) noexcept;
__attribute__((simd("notinbranch"), const)) float powf(float, float) noexcept;
}
#endif

// "x86-64-v4" is AVX-512 with its extensions for words (AVX512BW), without which loops over bf16 have vectors of half
// the width. GCC 11 cannot pick a clone by it. (With the thread sanitizer there are no clones: it instruments even the
// code that picks one, which runs before the sanitizer is set up.)
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#if __GNUC__ >= 12
#define ENGINE_WIDEST "arch=x86-64-v4"
#else
#define ENGINE_WIDEST "avx512f"
#endif
#define ENGINE_VECTORISED __attribute__((target_clones(ENGINE_WIDEST, "avx2", "default")))
#else
#define ENGINE_VECTORISED
#endif

// For functions and lambdas that must be compiled as part of a clone, for its vector width.
#define ENGINE_INLINE inline __attribute__((always_inline))
#define ENGINE_BODY __attribute__((always_inline))  // of lambdas
