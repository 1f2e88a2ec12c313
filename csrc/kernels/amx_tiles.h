// Fills and multiplies the tiles of AMX. Sums are 2 x 2 tiles, 32 channels of a left matrix by 32 of a right one; they
// are over pixels, 32 at a time (a chunk).
#pragma once

#include <cstdint>

#include "kernels/bf16.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace engine {
namespace {

constexpr int64_t wide = 32;                      // channels in a pair of tiles, and pixels in a tile
constexpr int64_t pair_elements = 2 * 16 * wide;  // of a pair of tiles of a matrix
constexpr int64_t pair_floats = wide * wide;      // of 2 x 2 tiles of sums
constexpr int64_t line = 64;                      // bytes of a cache line

}  // namespace
}  // namespace engine

#if defined(__x86_64__)

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,amx-tile,amx-bf16")
#include "kernels/transpose16.h"

namespace engine {
namespace {

using Rows = const bf16* const*;

// Ranges of memory that the next run of pixels will read, which are prefetched bit by bit during this run.
struct Ahead {
    static constexpr int most = 3;
    const char *at[most], *end[most];
    int count;
    int64_t lines;  // how many are fetched with every chunk
    inline void add(const void* from, const void* to) {
        at[count] = static_cast<const char*>(from);
        end[count++] = static_cast<const char*>(to);
    }
    inline int64_t bytes() const {
        int64_t sum = 0;
        for (int i = 0; i < count; i++) sum += end[i] - at[i];
        return sum;
    }
    inline void fetch() {
        for (int64_t i = 0; i < lines; i++, at[count - 1] += line) {
            while (at[count - 1] >= end[count - 1])
                if (--count == 0) {
                    count = 1;
                    return;
                }
            _mm_prefetch(at[count - 1], _MM_HINT_T1);
        }
    }
};

// Brings neighbouring pixels side by side: of 32 pixels, the channels from `first` on. low receives channels 0-3, 8-11,
// 16-19 and 24-27, high the others.
inline void side_by_side(Rows rows, int64_t first, __mmask32 channels, __m512i low[16], __m512i high[16]) {
    for (int i = 0; i < 16; i++) {
        const __m512i a = _mm512_maskz_loadu_epi16(channels, rows[2 * i] + first),
                      b = _mm512_maskz_loadu_epi16(channels, rows[2 * i + 1] + first);
        low[i] = _mm512_unpacklo_epi16(a, b);
        high[i] = _mm512_unpackhi_epi16(a, b);
    }
}

// Packs two tiles of the right matrix: a row for every two pixels.
inline void pack_right(Rows rows, int64_t first, __mmask32 channels, uint16_t* to) {
    __m512i low[16], high[16];
    side_by_side(rows, first, channels, low, high);
    for (int i = 0; i < 16; i++) {
        _mm512_store_si512(to + i * wide, low[i]);
        _mm512_store_si512(to + (16 + i) * wide, high[i]);
    }
}

// Packs two tiles of the left matrix: a row for every channel.
inline void pack_left(Rows rows, int64_t first, __mmask32 channels, uint16_t* to) {
    __m512i low[16], high[16];
    side_by_side(rows, first, channels, low, high);
    transpose16(low);
    transpose16(high);
    for (int i = 0; i < 16; i++) {
        _mm512_store_si512(to + i * wide, low[i]);
        _mm512_store_si512(to + (16 + i) * wide, high[i]);
    }
}

inline __mmask32 mask_of(int64_t channels) { return channels >= wide ? ~__mmask32(0) : (__mmask32(1) << channels) - 1; }

// Keeps GCC from moving stores past the intrinsics for tiles, which do not tell it that they access memory.
inline void finish_stores() { asm volatile("" ::: "memory"); }

// sums (2 x 2 tiles) += left right, or = with `fresh`. next_lines: how many lines of the sums behind these are
// prefetched with every chunk.
inline void multiply(const uint16_t* left, const uint16_t* right, int64_t chunks, bool fresh, float* sums, Ahead& ahead,
                     int64_t next_lines) {
    finish_stores();
    if (fresh) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, sums, line);
        _tile_loadd(1, sums + 256, line);
        _tile_loadd(2, sums + 512, line);
        _tile_loadd(3, sums + 768, line);
    }
    const char* next = reinterpret_cast<const char*>(sums + pair_floats);
    for (int64_t i = 0; i < chunks; i++, left += pair_elements, right += pair_elements) {
        ahead.fetch();
        for (int64_t k = 0; k < next_lines; k++, next += line) _mm_prefetch(next, _MM_HINT_T1);
        _tile_loadd(4, left, line);
        _tile_loadd(6, right, line);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, right + pair_elements / 2, line);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, left + pair_elements / 2, line);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, line);
    _tile_stored(1, sums + 256, line);
    _tile_stored(2, sums + 512, line);
    _tile_stored(3, sums + 768, line);
    finish_stores();
}

struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

}  // namespace
}  // namespace engine

#pragma GCC pop_options
#endif
