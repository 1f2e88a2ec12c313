#include "kernels/lattice.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <unordered_map>

#include "kernels/whole.h"

namespace engine {
namespace {

using Key = std::array<int32_t, Lattice::most_dimensions>;  // all coordinates of a vertex but the last, which follows

struct Hash {
    size_t operator()(const Key& key) const {
        uint64_t hash = 0;
        for (int32_t number : key) hash = (hash ^ uint64_t(uint32_t(number))) * 0x9E3779B97F4A7C15u + (hash >> 29);
        return size_t(hash);
    }
};

using Vertices = std::unordered_map<Key, int32_t, Hash>;

// What a point becomes on the plane of the lattice, in d + 1 coordinates that add up to 0.
struct Elevated {
    std::array<float, Lattice::most_dimensions + 1> place, origin;  // origin: of its simplex, a vertex of color 0
    std::array<int, Lattice::most_dimensions + 1> rank;  // of what is left of each coordinate, 0 the greatest
};

float bounded(float feature) { return std::isfinite(feature) ? std::clamp(feature, -1e6f, 1e6f) : 0; }

Elevated elevate(const float* feature, int64_t d) {
    Elevated point;
    const float deviation = std::sqrt(2.f / 3) * float(d + 1);
    float rest = 0;
    for (int64_t i = d; i > 0; i--) {
        const float scaled = bounded(feature[i - 1]) * deviation / std::sqrt(float(i * (i + 1)));
        point.place[i] = rest - float(i) * scaled;
        rest += scaled;
    }
    point.place[0] = rest;
    int color = 0;
    for (int64_t i = 0; i <= d; i++) {
        const int64_t cell = whole(std::nearbyint(point.place[i] / float(d + 1)));
        point.origin[i] = float(cell * (d + 1));
        color += int(cell);
        point.rank[i] = 0;
    }
    for (int64_t i = 0; i < d; i++)
        for (int64_t j = i + 1; j <= d; j++) {
            const bool less = point.place[i] - point.origin[i] < point.place[j] - point.origin[j];
            point.rank[less ? i : j]++;
        }
    for (int64_t i = 0; i <= d; i++) {  // back to the plane, if rounding has left it
        point.rank[i] += color;
        const int around = point.rank[i] < 0 ? 1 : point.rank[i] > d ? -1 : 0;
        point.rank[i] += around * int(d + 1);
        point.origin[i] += float(around) * float(d + 1);
    }
    return point;
}

// Of each corner of the point's simplex, which add up to 1.
void barycentric(const Elevated& point, int64_t d, float* shares) {
    std::array<float, Lattice::most_dimensions + 2> sums{};
    for (int64_t i = 0; i <= d; i++) {
        const float part = (point.place[i] - point.origin[i]) / float(d + 1);
        sums[d - point.rank[i]] += part;
        sums[d + 1 - point.rank[i]] -= part;
    }
    shares[0] = sums[0] + 1 + sums[d + 1];
    std::copy_n(sums.begin() + 1, d, shares + 1);
}

int32_t number_of(const Vertices& vertices, const Key& key) {
    const auto found = vertices.find(key);
    return found == vertices.end() ? 0 : found->second;
}

}  // namespace

Lattice::Lattice(const float* features, int64_t points, int64_t dimensions)
    : points_(points), corners_each_(dimensions + 1), corners_(points * corners_each_), shares_(corners_.size()) {
    const int64_t d = dimensions;
    Vertices vertices;
    std::vector<Key> keys;
    for (int64_t n = 0; n < points; n++) {
        const Elevated point = elevate(features + n * d, d);
        barycentric(point, d, &shares_[n * corners_each_]);
        for (int64_t corner = 0; corner <= d; corner++) {
            Key key{};
            for (int64_t i = 0; i < d; i++)
                key[i] =
                    int32_t(whole(point.origin[i])) + int32_t(point.rank[i] <= d - corner ? corner : corner - d - 1);
            const auto [at, is_new] = vertices.try_emplace(key, int32_t(keys.size()) + 1);
            if (is_new) keys.push_back(key);
            corners_[n * corners_each_ + corner] = at->second;
        }
    }
    vertices_ = int64_t(keys.size());
    neighbours_.resize(corners_each_ * vertices_ * 2);
#pragma omp parallel for collapse(2)
    for (int64_t axis = 0; axis <= d; axis++)
        for (int64_t vertex = 0; vertex < vertices_; vertex++) {
            Key before = keys[vertex], after = keys[vertex];
            for (int64_t i = 0; i < d; i++) {
                before[i] += i == axis ? int32_t(d) : -1;
                after[i] -= i == axis ? int32_t(d) : -1;
            }
            int32_t* const two = &neighbours_[(axis * vertices_ + vertex) * 2];
            two[0] = number_of(vertices, before);
            two[1] = number_of(vertices, after);
        }
}

void Lattice::filter(const float* in, float* out, int64_t planes, bool transposed) const {
    using Values = std::array<float, most_planes>;  // of a vertex, one for each plane
    std::vector<Values> values(vertices_ + 1), blurred(vertices_ + 1);
    for (int64_t n = 0; n < points_; n++) {
        Values point{};
        for (int64_t plane = 0; plane < planes; plane++) point[plane] = in[plane * points_ + n];
        for (int64_t i = n * corners_each_; i < (n + 1) * corners_each_; i++) {
            Values& corner = values[corners_[i]];
            for (int64_t plane = 0; plane < most_planes; plane++) corner[plane] += shares_[i] * point[plane];
        }
    }
    for (int64_t step = 0; step < corners_each_; step++) {
        const int64_t axis = transposed ? corners_each_ - 1 - step : step;
        const int32_t* two = &neighbours_[axis * vertices_ * 2];
        for (int64_t vertex = 1; vertex <= vertices_; vertex++, two += 2) {
            const Values &own = values[vertex], &before = values[two[0]], &after = values[two[1]];
            for (int64_t plane = 0; plane < most_planes; plane++)
                blurred[vertex][plane] = own[plane] + 0.5f * (before[plane] + after[plane]);
        }
        values.swap(blurred);
    }
    for (int64_t n = 0; n < points_; n++) {
        Values sums{};
        for (int64_t i = n * corners_each_; i < (n + 1) * corners_each_; i++) {
            const Values& corner = values[corners_[i]];
            for (int64_t plane = 0; plane < most_planes; plane++) sums[plane] += shares_[i] * corner[plane];
        }
        for (int64_t plane = 0; plane < planes; plane++) out[plane * points_ + n] = sums[plane];
    }
}

}  // namespace engine
