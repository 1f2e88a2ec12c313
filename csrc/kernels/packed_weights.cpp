#include "kernels/packed_weights.h"

#if defined(__x86_64__)
#include "kernels/isa.h"
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12 warns of its own intrinsics
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include "kernels/transpose16.h"
#endif

namespace engine {

namespace {

constexpr int64_t tile = 16, pair_block = 32;  // lanes and elements along the pairs that are packed at a time

#if defined(__x86_64__)

#define ENGINE_AMX_HOST __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

bool can_pack() { return may_use(Isa::avx512_bf16); }

ENGINE_AMX_HOST inline __m512i pair(__m512 low, __m512 high) {
    const __m512i l = _mm512_cvtepu16_epi32(__m256i(_mm512_cvtneps_pbh(low))),
                  h = _mm512_cvtepu16_epi32(__m256i(_mm512_cvtneps_pbh(high)));
    return _mm512_or_si512(l, _mm512_slli_epi32(h, 16));
}

// Packs sixteen rows, `row` elements apart, each of two runs of sixteen elements along the pairs.
ENGINE_AMX_HOST void pack_rows_of_pairs(const float* from, int64_t row, int64_t second, uint16_t* to, int64_t to_row) {
    __m512i rows[16];
    for (int i = 0; i < 16; i++) {
        const float* const at = from + i * row;
        __builtin_prefetch(at + 2 * pair_block);
        __builtin_prefetch(at + 2 * pair_block + 16);
        rows[i] = __m512i(_mm512_cvtne2ps_pbh(_mm512_loadu_ps(at + second), _mm512_loadu_ps(at)));
    }
    transpose16(rows);
    for (int i = 0; i < 16; i++) _mm512_storeu_si512(to + i * to_row, rows[i]);
}

// Packs twice sixteen rows, `row` elements apart, each of sixteen lanes.
ENGINE_AMX_HOST void pack_rows_of_lanes(const float* from, int64_t row, int64_t second, uint16_t* to, int64_t to_row) {
    for (int i = 0; i < 16; i++) {
        const float* const at = from + (i < 8 ? 0 : second) + i % 8 * 2 * row;
        __builtin_prefetch(at + tile * tile);
        __builtin_prefetch(at + tile * tile + row);
        _mm512_storeu_si512(to + i * to_row, pair(_mm512_loadu_ps(at), _mm512_loadu_ps(at + row)));
    }
}

#else

bool can_pack() { return false; }
void pack_rows_of_pairs(const float*, int64_t, int64_t, uint16_t*, int64_t) {}
void pack_rows_of_lanes(const float*, int64_t, int64_t, uint16_t*, int64_t) {}

#endif

}  // namespace

PackedWeights::Axis PackedWeights::axis_of(const Blocked& layout, int which) {
    Axis axis{1, layout.strides[size_t(which)], 0};
    int64_t inner = 1;
    for (size_t i = layout.blocks.size(); i-- > 0; inner *= layout.blocks[i])
        if (layout.axes[i] == which) axis = {layout.blocks[i], axis.outer, inner};
    return axis;
}

std::optional<PackedWeights> PackedWeights::of(const std::vector<int64_t>& dims, const Blocked& from,
                                               const Blocked& to) {
    const auto &blocks = to.blocks, &axes = to.axes;
    if (!can_pack() || dims.size() < 2) return {};
    if (blocks.size() != 3 || blocks[0] != tile || blocks[1] % tile || blocks[2] != 2) return {};
    if (axes[0] > 1 || axes[1] != 1 - axes[0] || axes[2] != axes[0]) return {};
    if (from.blocks.size() != 0 && (from.blocks.size() != 2 || from.blocks[0] % tile || from.blocks[1] % tile))
        return {};
    if (from.blocks.size() == 2 && from.axes[0] + from.axes[1] != 1) return {};
    PackedWeights result;
    const int pairs = int(axes[0]), lanes = 1 - pairs;
    result.pairs_ = dims[pairs];
    result.lanes_ = dims[lanes];
    result.from_pairs_ = axis_of(from, pairs);
    result.from_lanes_ = axis_of(from, lanes);
    if (!result.from_pairs_.together() && !result.from_lanes_.together()) return {};
    result.to_pairs_ = to.strides[pairs];
    result.to_lanes_ = to.strides[lanes];
    result.lanes_of_block_ = blocks[1];
    result.from_pixels_ = result.to_pixels_ = {0};
    for (size_t axis = 2; axis < dims.size(); axis++) {
        std::vector<int64_t> sources, targets;
        for (size_t before = 0; before < result.from_pixels_.size(); before++) {
            for (int64_t i = 0; i < dims[axis]; i++) {
                sources.push_back(result.from_pixels_[before] + i * from.strides[axis]);
                targets.push_back(result.to_pixels_[before] + i * to.strides[axis]);
            }
        }
        result.from_pixels_ = sources;
        result.to_pixels_ = targets;
    }
    return result;
}

void PackedWeights::pack(const float* from, uint16_t* to) const {
    const int64_t across = pairs_ / pair_block, pieces = lanes_ / tile * across, row = 2 * lanes_of_block_;
    const auto pack_tile = from_pairs_.together() ? pack_rows_of_pairs : pack_rows_of_lanes;
    const Axis& rows = from_pairs_.together() ? from_lanes_ : from_pairs_;
    const int64_t step = rows.block == 1 ? rows.outer : rows.inner;
#pragma omp parallel for schedule(static)
    for (int64_t piece = 0; piece < pieces; piece++) {
        const int64_t lane = piece / across * tile, first = piece % across * pair_block;
        const float* const source = from + from_lanes_.at(lane) + from_pairs_.at(first);
        const int64_t second = from_pairs_.at(first + tile) - from_pairs_.at(first);
        uint16_t* const target =
            to + lane / lanes_of_block_ * to_lanes_ + lane % lanes_of_block_ * 2 + first / pair_block * to_pairs_;
        for (size_t pixel = 0; pixel < from_pixels_.size(); pixel++)
            pack_tile(source + from_pixels_[pixel], step, second, target + to_pixels_[pixel], row);
    }
}

}  // namespace engine
