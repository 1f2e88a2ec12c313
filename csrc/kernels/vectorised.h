// Kernels of our own are compiled once for each vector width; the widest that the processor has is picked when loading.
#pragma once

#include <cmath>

#if defined(__x86_64__)
// The C library has them for vectors, too, of errors below 4 ulp, which its header tells -ffast-math only.
extern "C" {
__attribute__((simd("notinbranch"), const)) float cosf(float) noexcept;
__attribute__((simd("notinbranch"), const)) float expf(float) noexcept;
__attribute__((simd("notinbranch"), const)) float logf(float) noexcept;
__attribute__((simd("notinbranch"), const)) float powf(float, float) noexcept;
}
#endif

// "x86-64-v4" is AVX-512 with its extensions for words (AVX512BW): without them loops over bf16 have vectors of half
// the width. GCC 11 cannot pick a clone by it. (The thread sanitizer instruments even what picks the clone, and that
// runs before the sanitizer is there.)
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

// What a clone is to compile for its own vector width.
#define ENGINE_INLINE inline __attribute__((always_inline))
#define ENGINE_BODY __attribute__((always_inline))  // of lambdas
