#include "packed_weights.h"

#if defined(__x86_64__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12 warns of its own intrinsics
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include "transpose16.h"
#endif

namespace engine {

namespace {

constexpr int64_t tile = 16, pair_block = 32;  // lanes, and elements along the pairs, that are packed at a time

#if defined(__x86_64__)

#define ENGINE_AMX_HOST __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

bool can_pack() { return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw"); }

ENGINE_AMX_HOST inline __m512i pair(__m512 low, __m512 high) {
    const __m512i l = _mm512_cvtepu16_epi32(__m256i(_mm512_cvtneps_pbh(low))),
                  h = _mm512_cvtepu16_epi32(__m256i(_mm512_cvtneps_pbh(high)));
    return _mm512_or_si512(l, _mm512_slli_epi32(h, 16));
}

// Sixteen rows `row` elements apart, each of two runs of sixteen elements along the pairs.
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

// Twice sixteen rows `row` elements apart, each of sixteen lanes.
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

PackedWeights::Axis PackedWeights::axis_of(const Layout& layout, int which) {
    const Dims blocks = layout.get_inner_blks(), axes = layout.get_inner_idxs();
    Axis axis{1, layout.get_strides()[which], 0};
    int64_t inner = 1;
    for (size_t i = blocks.size(); i-- > 0; inner *= blocks[i])
        if (axes[i] == which) axis = {blocks[i], axis.outer, inner};
    return axis;
}

std::optional<PackedWeights> PackedWeights::of(const Layout& from, const Layout& to) {
    using Type = dnnl::memory::data_type;
    constexpr auto blocked = dnnl::memory::format_kind::blocked;
    if (!can_pack() || from.get_data_type() != Type::f32 || to.get_data_type() != Type::bf16) return {};
    if (from.get_format_kind() != blocked || to.get_format_kind() != blocked) return {};
    const Dims dims = to.get_dims(), blocks = to.get_inner_blks(), axes = to.get_inner_idxs();
    if (dims.size() < 2 || from.get_dims() != dims || from.get_padded_dims() != dims || to.get_padded_dims() != dims)
        return {};
    if (blocks.size() != 3 || blocks[0] != tile || blocks[1] % tile || blocks[2] != 2) return {};
    if (axes[0] > 1 || axes[1] != 1 - axes[0] || axes[2] != axes[0]) return {};
    const Dims of_from = from.get_inner_blks();
    if (of_from.size() != 0 && (of_from.size() != 2 || of_from[0] % tile || of_from[1] % tile)) return {};
    if (of_from.size() == 2 && from.get_inner_idxs()[0] + from.get_inner_idxs()[1] != 1) return {};
    PackedWeights result;
    const int pairs = int(axes[0]), lanes = 1 - pairs;
    const Dims from_strides = from.get_strides(), to_strides = to.get_strides();
    result.pairs_ = dims[pairs];
    result.lanes_ = dims[lanes];
    result.from_pairs_ = axis_of(from, pairs);
    result.from_lanes_ = axis_of(from, lanes);
    if (!result.from_pairs_.together() && !result.from_lanes_.together()) return {};
    result.to_pairs_ = to_strides[pairs];
    result.to_lanes_ = to_strides[lanes];
    result.lanes_of_block_ = blocks[1];
    result.from_pixels_ = result.to_pixels_ = {0};
    for (size_t axis = 2; axis < dims.size(); axis++) {
        std::vector<int64_t> sources, targets;
        for (size_t before = 0; before < result.from_pixels_.size(); before++) {
            for (int64_t i = 0; i < dims[axis]; i++) {
                sources.push_back(result.from_pixels_[before] + i * from_strides[axis]);
                targets.push_back(result.to_pixels_[before] + i * to_strides[axis]);
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
