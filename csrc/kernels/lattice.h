// The permutohedral lattice (Adams, Baek and Davis 2010, "Fast high-dimensional filtering using the permutohedral
// lattice"): a Gaussian of deviation 1 over points in a few dimensions, up to a factor, in time linear in the points.
// Here it averages: each point is divided by what a plane of ones becomes there.
#pragma once

#include <cstdint>

namespace engine {

// Of any points of that number, in memory of the caller's that holds as many vertices as there may be, `corners` for
// each point: of pictures, noise comes near it, and photographs to a fifth or a third.
template <int dimensions>
class Lattice {
public:
    static constexpr int corners = dimensions + 1;  // of the simplex around a point
    static constexpr int lanes = 8;                 // planes that are filtered together

    explicit Lattice(int64_t points) : points_(points), entries_(points * corners) {}

    int64_t bytes() const;       // of a lattice
    int64_t room_bytes() const;  // what build() and average() need while they run

    // features: (dimensions, points), of which what is not finite counts as 0. memory: becomes the lattice.
    void build(const float* features, char* memory, char* room);

    // in, out: (points, lanes). out[i] becomes the sum of A[i][j] in[j] over the points j, where each row of A adds up
    // to 1, or, transposed, of A[j][i] in[j]. The same for any number of threads.
    void average(const float* in, float* out, bool transposed, char* room) const;

private:
    void number_vertices(int32_t* keys, char* room);
    void chain_neighbours(const int32_t* keys, char* room, uint32_t* next);
    void measure_scales(float* values);
    template <bool of_ones>
    void add_up(const float* in, const float* scales, float* values) const;
    void blur(bool backwards, float* values) const;

    int64_t slots() const { return entries_ + entries_ / 2 + 1; }  // of the table of vertices, so that a third is free

    int64_t points_, entries_;  // entry n * corners + k: corner k of the simplex around point n
    int64_t vertices_ = 0;
    int32_t* vertex_of_ = nullptr;  // of entries
    float* shares_ = nullptr;       // of entries: those of the corners of a point add up to 1
    float* scales_ = nullptr;       // of points: 1 / what ones become
    int32_t* chains_ = nullptr;     // (corners, vertices): along an axis, neighbours side by side, the last one as ~v
};

}  // namespace engine
