#include "kernels/lattice.h"

#include <omp.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "kernels/eight.h"
#include "kernels/vectorised.h"
#include "kernels/whole.h"

namespace engine {
namespace {

constexpr int lanes = Lattice<2>::lanes;
constexpr int together = 16;               // points that are placed together
constexpr int64_t chunk = 1024;            // vertices or points that a thread does at a time
constexpr int64_t ahead = 24;              // links of a chain that are prefetched
constexpr uint32_t has_before = 1u << 31;  // in `next`: the vertex has a neighbour before it

typedef uint32_t Bits __attribute__((vector_size(4 * lanes)));

// Finds the simplex around each of `count` points, up to `together`. A corner's key is its coordinates but the last,
// which follows from them. features: of the first point, `step` apart; keys: (points, corners, d); shares: (points,
// corners).
template <int d>
ENGINE_VECTORISED void place_points(const float* features, int64_t step, int64_t count, int32_t* keys, float* shares) {
    // place: a point on the plane of the lattice, in d + 1 coordinates whose sum is 0. origin: that of its simplex, a
    // vertex of color 0. rank: the order of place - origin, 0 for the greatest.
    alignas(64) float place[d + 1][together], origin[d + 1][together], rest[together] = {}, color[together] = {};
    alignas(64) int32_t rank[d + 1][together] = {};
    const float deviation = std::sqrt(2.f / 3) * float(d + 1);
    for (int i = d; i > 0; i--) {
        alignas(64) float feature[together] = {};
        std::copy_n(features + (i - 1) * step, count, feature);
        const float side = std::sqrt(float(i * (i + 1)));
        for (int n = 0; n < together; n++) {
            const float near = std::min(std::max(feature[n], -1e6f), 1e6f);
            const float scaled = (std::abs(feature[n]) <= FLT_MAX ? near : 0) * deviation / side;
            place[i][n] = rest[n] - float(i) * scaled;
            rest[n] += scaled;
        }
    }
    std::copy_n(rest, together, place[0]);
    for (int i = 0; i <= d; i++)
        for (int n = 0; n < together; n++) {
            const float cell = std::nearbyint(place[i][n] / float(d + 1));
            origin[i][n] = cell * float(d + 1);
            color[n] += cell;
        }
    for (int i = 0; i < d; i++)
        for (int j = i + 1; j <= d; j++)
            for (int n = 0; n < together; n++) {
                const bool less = place[i][n] - origin[i][n] < place[j][n] - origin[j][n];
                rank[i][n] += less ? 1 : 0;
                rank[j][n] += less ? 0 : 1;
            }
    for (int64_t n = 0; n < count; n++) {
        int32_t base[d + 1];
        int ranks[d + 1];
        float fractions[d + 1];                        // by rank
        const auto excess = int32_t(whole(color[n]));  // how far rounding has moved the origin off the plane
        for (int i = 0; i <= d; i++) {
            const int raised = rank[i][n] + excess, around = raised < 0 ? d + 1 : raised > d ? -d - 1 : 0;
            const float begin = origin[i][n] + float(around);
            ranks[i] = raised + around;
            base[i] = int32_t(whole(begin));
            fractions[ranks[i]] = (place[i][n] - begin) / float(d + 1);
        }
        shares[n * (d + 1)] = fractions[d] + 1 - fractions[0];
        for (int corner = 1; corner <= d; corner++)
            shares[n * (d + 1) + corner] = fractions[d - corner] - fractions[d + 1 - corner];
        for (int corner = 0; corner <= d; corner++)
            for (int i = 0; i < d; i++)
                keys[(n * (d + 1) + corner) * d + i] = base[i] + (ranks[i] <= d - corner ? corner : corner - d - 1);
    }
}

// Returns the hash of a key. It is linear, so that the hash of a neighbour is that of its vertex plus a constant.
template <int d>
uint64_t hash_of(const int32_t* key) {
    constexpr uint64_t factors[] = {0x9E3779B97F4A7C15u, 0xBF58476D1CE4E5B9u, 0x94D049BB133111EBu, 0xD6E8FEB86659FD93u,
                                    0xA0761D6478BD642Fu};
    uint64_t hash = 0;
    for (int i = 0; i < d; i++) hash += factors[i] * uint64_t(int64_t(key[i]));
    return hash;
}

// A hash table: key -> number of a vertex, from 1 on.
template <int d>
class Table {
public:
    struct Slot {
        uint32_t tag;    // the lower half of a hash; its upper half tells the first slot to look at
        int32_t number;  // 0: free
    };

    Table(const int32_t* keys, Slot* slots, int64_t count) : keys_(keys), slots_(slots), count_(count) {}

    // Prefetches the first slot of a hash.
    void expect(uint64_t hash) const { __builtin_prefetch(slots_ + first(hash)); }

    // Returns a key's slot; if it has none, the free one that it would get.
    Slot& at(uint64_t hash, const int32_t* key) const {
        int64_t at = first(hash);
        while (slots_[at].number != 0 && !(slots_[at].tag == uint32_t(hash) && is(key, slots_[at].number)))
            if (++at == count_) at = 0;
        return slots_[at];
    }

private:
    int64_t first(uint64_t hash) const { return int64_t(((hash >> 32) * uint64_t(count_)) >> 32); }
    bool is(const int32_t* key, int32_t number) const {
        return std::memcmp(keys_ + int64_t(number - 1) * d, key, d * sizeof(int32_t)) == 0;
    }

    const int32_t* keys_;  // (vertices, d)
    Slot* slots_;
    int64_t count_;
};

// Adds the values of points, or 1 with of_ones, times their shares to the values of their corners [first, last). A
// vertex is the same corner of all points around it, so that threads with other corners never write to it, and its
// points are added in their order. scales: factors of points, or null for ones.
template <int d, bool of_ones>
ENGINE_VECTORISED void splat(const int32_t* vertex_of, const float* shares, const float* scales, const float* in,
                             int64_t points, int first, int last, float* values) {
    for (int64_t n = 0; n < points; n++, vertex_of += d + 1, shares += d + 1) {
        Eight point = Eight{} + 1;
        if constexpr (!of_ones) point = eight(in + n * lanes);
        if (scales) point *= scales[n];
        for (int k = first; k < last; k++) {
            float* const vertex = values + int64_t(vertex_of[k]) * lanes;
            eight(vertex) = eight(vertex) + shares[k] * point;
        }
    }
}

// Sets `out` to the sum of the values of each point's corners times its shares. scales: as above.
template <int d>
ENGINE_VECTORISED void interpolate(const int32_t* vertex_of, const float* shares, const float* scales,
                                   const float* values, int64_t points, float* out) {
    for (int64_t n = 0; n < points; n++) {
        Eight sum{};
        for (int k = 0; k <= d; k++)
            sum += shares[n * (d + 1) + k] * eight(values + int64_t(vertex_of[n * (d + 1) + k]) * lanes);
        eight(out + n * lanes) = scales ? sum * scales[n] : sum;
    }
}

// Adds half of both neighbours to each vertex of whole chains, in place; `before` keeps the old value of the one
// before.
ENGINE_VECTORISED void blur_chains(const int32_t* chain, int64_t count, float* values) {
    const auto at = [&](int32_t link) ENGINE_BODY { return values + int64_t(link ^ (link >> 31)) * lanes; };
    Eight before{}, own = eight(at(chain[0]));
    for (int64_t i = 0; i < count; i++) {
        __builtin_prefetch(at(chain[std::min(i + ahead, count - 1)]), 1);
        const Eight next = eight(at(chain[std::min(i + 1, count - 1)]));
        const uint32_t goes_on = ~uint32_t(chain[i] >> 31);
        const auto after = Eight(Bits(next) & goes_on);
        eight(at(chain[i])) = own + 0.5f * (before + after);
        before = Eight(Bits(own) & goes_on);
        own = next;
    }
}

// Calls work(begin, length) for pieces of [0, count), in parallel.
template <typename Work>
void in_pieces(int64_t count, const Work& work) {
#pragma omp parallel for schedule(static) if (count > chunk)
    for (int64_t begin = 0; begin < count; begin += chunk) work(begin, std::min(chunk, count - begin));
}

}  // namespace

template <int d>
int64_t Lattice<d>::bytes() const {
    return int64_t(sizeof(int32_t)) * (points_ + (2 + corners) * entries_);
}

template <int d>
int64_t Lattice<d>::room_bytes() const {
    const int64_t table = slots() * int64_t(sizeof(typename Table<d>::Slot));
    return std::max(table + int64_t(sizeof(int32_t)) * (d + 1) * entries_, int64_t(sizeof(float)) * lanes * entries_);
}

template <int d>
void Lattice<d>::build(const float* features, char* memory, char* room) {
    shares_ = reinterpret_cast<float*>(memory);
    scales_ = shares_ + entries_;
    vertex_of_ = reinterpret_cast<int32_t*>(scales_ + points_);
    chains_ = vertex_of_ + entries_;  // as many numbers as there are vertices; memory behind these is never touched
    auto* const table = reinterpret_cast<typename Table<d>::Slot*>(room);
    auto* const keys = reinterpret_cast<int32_t*>(table + slots());
    in_pieces(points_, [&](int64_t begin, int64_t length) {
        for (int64_t n = begin; n < begin + length; n += together)
            place_points<d>(features + n, points_, std::min<int64_t>(together, begin + length - n),
                            keys + n * corners * d, shares_ + n * corners);
    });
    std::memset(room, 0, size_t(slots()) * sizeof(*table));
    number_vertices(keys, room);
    chain_neighbours(keys, room, reinterpret_cast<uint32_t*>(keys + entries_ * d));
    measure_scales(reinterpret_cast<float*>(room));
}

// Numbers the vertices in the order of entries. keys: of all entries; receives those of the vertices. room: holds the
// table, which is empty before.
template <int d>
void Lattice<d>::number_vertices(int32_t* keys, char* room) {
    const Table<d> table(keys, reinterpret_cast<typename Table<d>::Slot*>(room), slots());
    vertices_ = 0;
    for (int64_t begin = 0; begin < entries_; begin += chunk) {
        const int64_t end = std::min(begin + chunk, entries_);
        uint64_t hashes[chunk];
        for (int64_t entry = begin; entry < end; entry++)
            table.expect(hashes[entry - begin] = hash_of<d>(keys + entry * d));
        for (int64_t entry = begin; entry < end; entry++) {
            const uint64_t hash = hashes[entry - begin];
            auto& slot = table.at(hash, keys + entry * d);
            if (slot.number == 0) {
                std::memmove(keys + vertices_ * d, keys + entry * d, d * sizeof(int32_t));
                slot = {uint32_t(hash), int32_t(++vertices_)};
            }
            vertex_of_[entry] = slot.number - 1;
        }
    }
}

// Sets the chains of neighbours. next: memory for the next vertex along an axis of each vertex.
template <int d>
void Lattice<d>::chain_neighbours(const int32_t* keys, char* room, uint32_t* next) {
    const Table<d> table(keys, reinterpret_cast<typename Table<d>::Slot*>(room), slots());
    for (int axis = 0; axis <= d; axis++) {
        int32_t step[d];
        for (int i = 0; i < d; i++) step[i] = i == axis ? d : -1;
        const uint64_t more = hash_of<d>(step);
        in_pieces(vertices_, [&](int64_t begin, int64_t length) {
            uint64_t hashes[chunk];
            for (int64_t i = 0; i < length; i++) table.expect(hashes[i] = hash_of<d>(keys + (begin + i) * d) + more);
            for (int64_t i = 0; i < length; i++) {
                int32_t key[d];
                for (int j = 0; j < d; j++) key[j] = keys[(begin + i) * d + j] + step[j];
                next[begin + i] = uint32_t(table.at(hashes[i], key).number);  // from 1 on; 0: none
            }
        });
        for (int64_t v = 0; v < vertices_; v++)
            if (const uint32_t number = next[v] & ~has_before) next[number - 1] |= has_before;
        int32_t* chain = chains_ + axis * vertices_;
        for (int64_t v = 0; v < vertices_; v++) {
            if (next[v] & has_before) continue;
            auto link = int32_t(v);
            while (const uint32_t number = next[link] & ~has_before) {
                *chain++ = link;
                link = int32_t(number) - 1;
            }
            *chain++ = ~link;
        }
    }
}

// Sets the scales to 1 divided by what ones become.
template <int d>
void Lattice<d>::measure_scales(float* values) {
    add_up<true>(nullptr, nullptr, values);
    blur(false, values);
    in_pieces(points_, [&](int64_t begin, int64_t length) {
        for (int64_t n = begin; n < begin + length; n++) {
            float ones[lanes];
            interpolate<d>(vertex_of_ + n * corners, shares_ + n * corners, nullptr, values, 1, ones);
            scales_[n] = 1 / (ones[0] + 1e-20f);
        }
    });
}

template <int d>
template <bool of_ones>
void Lattice<d>::add_up(const float* in, const float* scales, float* values) const {
    in_pieces(vertices_,
              [&](int64_t begin, int64_t length) { std::fill_n(values + begin * lanes, length * lanes, 0.f); });
    const int teams = std::min(corners, omp_get_max_threads());
#pragma omp parallel for schedule(static) if (points_ > chunk)
    for (int team = 0; team < teams; team++)
        splat<d, of_ones>(vertex_of_, shares_, scales, in, points_, corners * team / teams,
                          corners * (team + 1) / teams, values);
}

template <int d>
void Lattice<d>::blur(bool backwards, float* values) const {
    const int64_t pieces = (vertices_ + chunk - 1) / chunk;
    for (int step = 0; step <= d; step++) {
        const int32_t* const chain = chains_ + (backwards ? d - step : step) * vertices_;
        const auto begin_of = [&](int64_t piece) {  // of the first chain that begins in a piece
            int64_t at = std::min(piece * chunk, vertices_);
            while (at > 0 && at < vertices_ && chain[at - 1] >= 0) at++;
            return at;
        };
#pragma omp parallel for schedule(static) if (pieces > 1)
        for (int64_t piece = 0; piece < pieces; piece++) {
            const int64_t begin = begin_of(piece), end = begin_of(piece + 1);
            if (begin < end) blur_chains(chain + begin, end - begin, values);
        }
    }
}

template <int d>
void Lattice<d>::average(const float* in, float* out, bool transposed, char* room) const {
    auto* const values = reinterpret_cast<float*>(room);
    add_up<false>(in, transposed ? scales_ : nullptr, values);
    blur(transposed, values);
    in_pieces(points_, [&](int64_t begin, int64_t length) {
        interpolate<d>(vertex_of_ + begin * corners, shares_ + begin * corners, transposed ? nullptr : scales_ + begin,
                       values, length, out + begin * lanes);
    });
}

template class Lattice<2>;
template class Lattice<5>;

}  // namespace engine
