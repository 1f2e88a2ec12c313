#include "kernels/channel_order.h"

#include <algorithm>
#include <numeric>
#include <type_traits>

#if defined(__x86_64__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 warns of its own intrinsics
#include <immintrin.h>

#include "kernels/isa.h"
#endif

namespace engine {

namespace {

constexpr int64_t unit = 16, chunk = 64;  // channels and pixels that are taken at a time
constexpr int64_t ahead = 2 * chunk;      // pixels that are prefetched: runs are too short for the processor to do it

#if defined(__x86_64__)

#define ENGINE_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl")))

bool can_take() { return may_use(Isa::avx512); }

// Loads sixteen elements, or, unless `whole`, `count` of them.
template <bool whole>
ENGINE_AVX512 inline __m512i load(const float* from, int64_t count) {
    return whole ? _mm512_loadu_si512(from) : _mm512_maskz_loadu_epi32(__mmask16((1u << count) - 1), from);
}

template <bool whole>
ENGINE_AVX512 inline __m512i load(const bf16* from, int64_t count) {
    const auto at = reinterpret_cast<const __m256i*>(from);
    return _mm512_cvtepu16_epi32(whole ? _mm256_loadu_si256(at)
                                       : _mm256_maskz_loadu_epi16(__mmask16((1u << count) - 1), from));
}

template <bool whole>
ENGINE_AVX512 inline void save(__m512i values, int64_t count, float* to) {
    if (whole)
        _mm512_storeu_si512(to, values);
    else
        _mm512_mask_storeu_epi32(to, __mmask16((1u << count) - 1), values);
}

template <bool whole>
ENGINE_AVX512 inline void save(__m512i values, int64_t count, bf16* to) {
    const __m256i halves = _mm512_cvtepi32_epi16(values);
    if (whole)
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves);
    else
        _mm256_mask_storeu_epi16(to, __mmask16((1u << count) - 1), halves);
}

#endif

}  // namespace

ChannelOrder::ChannelOrder(const ChannelRows& rows, const std::vector<int64_t>& order) : rows_(rows), order_(order) {
#if defined(__x86_64__)
    const bool is_last = rows.lanes == rows.channels;
    by_sixteen_ = can_take() && rows.lanes > 1 && (is_last || rows.lanes == unit);
#endif
    if (!by_sixteen_) return;
    unit_stride_ = rows.blocks() > 1 ? rows.block_stride : unit;
    ends_.push_back(0);
    for (int64_t begin = 0; begin < rows.channels; begin += unit) {
        const size_t first = takes_.size();
        for (int64_t c = begin; c < std::min(begin + unit, rows.channels); c++) {
            const int64_t from = order[c] / unit;
            auto take =
                std::find_if(takes_.begin() + first, takes_.end(), [&](const Take& t) { return t.from == from; });
            if (take == takes_.end()) {
                take = takes_.insert(take, Take{from, {}, {}});
                std::iota(take->lanes, take->lanes + unit, 0);
                std::iota(take->pairs, take->pairs + 2 * unit, int16_t(0));
            }
            const int64_t lane = c - begin, source = order[c] % unit;
            take->lanes[lane] = int32_t(unit + source);
            take->pairs[lane] = int16_t(2 * unit + source);
            take->pairs[unit + lane] = int16_t(3 * unit + source);
        }
        ends_.push_back(takes_.size());
    }
}

#if defined(__x86_64__)
template <typename T, bool whole>
ENGINE_AVX512 void ChannelOrder::take(const T* x, T* y, int64_t pixels) const {
    const int64_t step = rows_.inner_stride;
    const auto channels_of = [&](int64_t which) { return std::min(unit, rows_.channels - which * unit); };
    for (int64_t to = 0; to + 1 < int64_t(ends_.size()); to++) {
        const Take *const begin = &takes_[ends_[to]], *const end = takes_.data() + ends_[to + 1];
        T* const into = y + to * unit_stride_;
        for (int64_t i = 0; i < pixels; i++) {
            __m512i taken = _mm512_setzero_si512();
            for (const Take* each = begin; each < end; each++) {
                const T* const at = x + each->from * unit_stride_ + i * step;
                __builtin_prefetch(at + ahead * step);
                const __m512i from = load<whole>(at, channels_of(each->from));
                taken = _mm512_permutex2var_epi32(taken, _mm512_load_si512(each->lanes), from);
            }
            save<whole>(taken, channels_of(to), into + i * step);
        }
    }
}

// Takes two pixels at a time, of blocks of sixteen channels whose pixels lie one after the other.
ENGINE_AVX512 void ChannelOrder::take_pairs(const bf16* x, bf16* y, int64_t pixels) const {
    for (int64_t to = 0; to + 1 < int64_t(ends_.size()); to++) {
        const Take *const begin = &takes_[ends_[to]], *const end = takes_.data() + ends_[to + 1];
        bf16* const into = y + to * unit_stride_;
        for (int64_t i = 0; i < pixels; i += 2) {
            const __mmask32 which = i + 2 <= pixels ? 0xffffffff : 0xffff;
            __m512i taken = _mm512_setzero_si512();
            for (const Take* each = begin; each < end; each++) {
                const bf16* const at = x + each->from * unit_stride_ + i * unit;
                __builtin_prefetch(at + ahead * unit);
                const __m512i from = _mm512_maskz_loadu_epi16(which, at);
                taken = _mm512_permutex2var_epi16(taken, _mm512_load_si512(each->pairs), from);
            }
            _mm512_mask_storeu_epi16(into + i * unit, which, taken);
        }
    }
}
#else
void ChannelOrder::take_pairs(const bf16*, bf16*, int64_t) const {}
template <typename T, bool whole>
void ChannelOrder::take(const T*, T*, int64_t) const {}
#endif

template <typename T>
void ChannelOrder::copy(const T* x, T* y, int64_t pixels) const {
    for (int64_t c = 0; c < rows_.padded_channels(); c++) {
        T* const to = y + c / rows_.lanes * rows_.block_stride + c % rows_.lanes;
        const int64_t step = rows_.inner_stride, source = c < rows_.channels ? order_[c] : -1;
        const T* const from = x + source / rows_.lanes * rows_.block_stride + source % rows_.lanes;
        if (source < 0)
            for (int64_t i = 0; i < pixels; i++) to[i * step] = T{};
        else if (step == 1)
            std::copy_n(from, pixels, to);
        else
            for (int64_t i = 0; i < pixels; i++) to[i * step] = from[i * step];
    }
}

template <typename T>
void ChannelOrder::apply(const T* x, T* y) const {
    const int64_t together = rows_.inner_stride == 1 ? rows_.inner : chunk;
    const int64_t chunks = (rows_.inner + together - 1) / together;
#pragma omp parallel for collapse(2) schedule(static) if (!rows_.small())
    for (int64_t n = 0; n < rows_.outer; n++)
        for (int64_t i = 0; i < chunks; i++) {
            const int64_t at = n * rows_.outer_stride + i * together * rows_.inner_stride;
            const int64_t pixels = std::min(together, rows_.inner - i * together);
            if (!by_sixteen_)
                copy(x + at, y + at, pixels);
            else if (std::is_same_v<T, bf16> && rows_.lanes == unit && rows_.inner_stride == unit)
                take_pairs(reinterpret_cast<const bf16*>(x + at), reinterpret_cast<bf16*>(y + at), pixels);
            else if (rows_.lanes == unit || rows_.channels % unit == 0)
                take<T, true>(x + at, y + at, pixels);
            else
                take<T, false>(x + at, y + at, pixels);
        }
}

template void ChannelOrder::apply(const float*, float*) const;
template void ChannelOrder::apply(const bf16*, bf16*) const;

}  // namespace engine
