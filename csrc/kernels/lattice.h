// Filters by a permutohedral lattice (Adams, Baek and Davis 2010, "Fast high-dimensional filtering using the
// permutohedral lattice"): by a Gaussian of deviation 1 over points in a few dimensions, up to a factor, in time linear
// in the points. Here it averages: each point is divided by what a plane of ones becomes there.
#pragma once

#include <cstdint>

namespace engine {

// A lattice of any `points` points, in the caller's memory, which has room for the most vertices that there may be,
// `corners` for each point. Noise needs nearly as many, photographs a fifth or a third.
template <int dimensions>
class Lattice {
public:
    static constexpr int corners = dimensions + 1;  // of the simplex around a point
    static constexpr int lanes = 8;                 // planes that are filtered together

    explicit Lattice(int64_t points) : points_(points), entries_(points * corners) {}

    int64_t bytes() const;       // of the lattice's memory
    int64_t room_bytes() const;  // of the memory that build() and average() work in

    // features: (dimensions, points); values that are not finite count as 0. memory: receives the lattice.
    void build(const float* features, char* memory, char* room);

    // Sets out[i] to the sum of A[i][j] in[j] over the points j, where the sum of each row of A is 1, or with
    // `transposed` to that of A[j][i] in[j]. in, out: (points, lanes). The result does not depend on the number of
    // threads.
    void average(const float* in, float* out, bool transposed, char* room) const;

private:
    void number_vertices(int32_t* keys, char* room);
    void chain_neighbours(const int32_t* keys, char* room, uint32_t* next);
    void measure_scales(float* values);
    template <bool of_ones>
    void add_up(const float* in, const float* scales, float* values) const;
    void blur(bool backwards, float* values) const;

    int64_t slots() const { return entries_ + entries_ / 2 + 1; }  // of the table of vertices: a third stays free

    int64_t points_, entries_;  // entry n * corners + k: corner k of the simplex around point n
    int64_t vertices_ = 0;
    int32_t* vertex_of_ = nullptr;  // of entries
    float* shares_ = nullptr;       // of entries: the sum of a point's is 1
    float* scales_ = nullptr;       // of points: 1 / what ones become
    int32_t* chains_ = nullptr;     // (corners, vertices): neighbours along each axis side by side, the last as ~v
};

}  // namespace engine
