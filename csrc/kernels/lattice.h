// The permutohedral lattice (Adams, Baek and Davis 2010, "Fast high-dimensional filtering using the permutohedral
// lattice"): a Gaussian of deviation 1 over points in a few dimensions, up to a factor, in time linear in the points.
#pragma once

#include <cstdint>
#include <vector>

namespace engine {

class Lattice {
public:
    static constexpr int64_t most_dimensions = 5;
    static constexpr int64_t most_planes = 4;  // that are filtered together

    // features: (points, dimensions), of which what is not finite counts as 0.
    Lattice(const float* features, int64_t points, int64_t dimensions);

    // in, out: (planes, points), up to most_planes. out[i] becomes the sum of K[i][j] in[j] over the points j, or,
    // transposed, of K[j][i] in[j]. May be called in several threads.
    void filter(const float* in, float* out, int64_t planes, bool transposed) const;

private:
    int64_t points_, corners_each_, vertices_ = 0;
    std::vector<int32_t> corners_;     // (points, corners_each_): vertices from 1 on, for 0 is none
    std::vector<float> shares_;        // (points, corners_each_), which add up to 1 for each point
    std::vector<int32_t> neighbours_;  // (axes, vertices, 2)
};

}  // namespace engine
