// Transposes 16 x 16 elements, in files that are compiled for AVX-512.
#pragma once

#include <immintrin.h>

namespace engine {
namespace {

// Swaps rows[i][j] and rows[j][i], elements of 32 bits.
__attribute__((target("avx512f"))) inline void transpose16(__m512i rows[16]) {
    __m512i some[16];
    for (int i = 0; i < 16; i += 2) {
        some[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        some[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        for (int j : {0, 1}) {
            rows[i + 2 * j] = _mm512_unpacklo_epi64(some[i + j], some[i + 2 + j]);
            rows[i + 2 * j + 1] = _mm512_unpackhi_epi64(some[i + j], some[i + 2 + j]);
        }
    }
    // Now rows[4 b + c] holds, in its quarter q, column 4 q + c of rows 4 b to 4 b + 3.
    for (int c = 0; c < 4; c++) {
        const __m512i a = _mm512_shuffle_i32x4(rows[c], rows[4 + c], 0x88),
                      b = _mm512_shuffle_i32x4(rows[8 + c], rows[12 + c], 0x88),
                      d = _mm512_shuffle_i32x4(rows[c], rows[4 + c], 0xdd),
                      e = _mm512_shuffle_i32x4(rows[8 + c], rows[12 + c], 0xdd);
        some[c] = _mm512_shuffle_i32x4(a, b, 0x88);
        some[8 + c] = _mm512_shuffle_i32x4(a, b, 0xdd);
        some[4 + c] = _mm512_shuffle_i32x4(d, e, 0x88);
        some[12 + c] = _mm512_shuffle_i32x4(d, e, 0xdd);
    }
    for (int i = 0; i < 16; i++) rows[i] = some[i];
}

}  // namespace
}  // namespace engine
