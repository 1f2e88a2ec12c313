// Runs the kernel that computes gradients of weights by AMX, on a processor that may lack AMX: its tiles are arrays
// here, and the rest of the kernel is unchanged. Small whole numbers make the result exact. Fails if a sum is wrong, or
// if something is written beyond the scratch memory. Run by tests/csrc/test_amx_gradient.py.
#include <immintrin.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/bf16.h"

namespace {

constexpr int tile_rows = 16, tile_bytes = 64, tile_floats = 16;

// The tiles of one thread, all of 16 rows of 64 bytes: see TileConfig.
struct Tiles {
    using Tile = char[tile_rows][tile_bytes];
    bool configured;
    Tile data[8];

    void configure(const void* config) {
        const auto* const bytes = static_cast<const uint8_t*>(config);
        configured = bytes[0] == 1;  // the palette
        for (int tile = 0; tile < 8; tile++) {
            uint16_t width;
            std::memcpy(&width, bytes + 16 + 2 * tile, sizeof(width));
            configured = configured && width == tile_bytes && bytes[48 + tile] == tile_rows;
        }
    }

    Tile& use(int tile) {
        if (!configured) {
            std::puts("a tile is used without a configuration");
            std::exit(1);
        }
        return data[tile];
    }

    void zero(int tile) { std::memset(use(tile), 0, sizeof(Tile)); }

    void load(int tile, const void* from, int64_t stride) {
        for (int row = 0; row < tile_rows; row++)
            std::memcpy(use(tile)[row], static_cast<const char*>(from) + row * stride, tile_bytes);
    }

    void store(int tile, void* to, int64_t stride) {
        for (int row = 0; row < tile_rows; row++)
            std::memcpy(static_cast<char*>(to) + row * stride, use(tile)[row], tile_bytes);
    }

    // sums[m][n] += the sum over k of left[m][2 k] right[k][2 n] + left[m][2 k + 1] right[k][2 n + 1]
    void multiply(int sums, int left, int right) {
        float c[tile_rows][tile_floats];
        engine::bf16 a[tile_rows][2 * tile_rows], b[tile_rows][2 * tile_floats];
        std::memcpy(c, use(sums), sizeof(c));
        std::memcpy(a, use(left), sizeof(a));
        std::memcpy(b, use(right), sizeof(b));
        for (int m = 0; m < tile_rows; m++)
            for (int k = 0; k < 2 * tile_rows; k++)
                for (int n = 0; n < tile_floats; n++)
                    c[m][n] += engine::number(a[m][k]) * engine::number(b[k / 2][2 * n + k % 2]);
        std::memcpy(use(sums), c, sizeof(c));
    }
};

thread_local Tiles tiles{};

}  // namespace

#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig(config) tiles.configure(config)
#define _tile_release() (tiles.configured = false)
#define _tile_zero(tile) tiles.zero(tile)
#define _tile_loadd(tile, from, stride) tiles.load(tile, from, stride)
#define _tile_stored(tile, to, stride) tiles.store(tile, to, stride)
#define _tile_dpbf16ps(sums, left, right) tiles.multiply(sums, left, right)
#include "kernels/amx_gradient.cpp"
#pragma GCC reset_options

namespace {

using namespace engine;

struct Case {
    const char* name;
    ConvolutionShape shape;  // `out` is computed from the other fields
};

const Case cases[] = {
    {"one pixel", {3, 64, 32, {9, 7}, {}, {1, 1}, {1, 1}, {0, 0}, {1, 1}}},
    {"one pixel, fewer channels than outputs", {3, 40, 96, {9, 7}, {}, {1, 1}, {1, 1}, {0, 0}, {1, 1}}},
    {"one pixel, every second", {2, 64, 128, {9, 8}, {}, {1, 1}, {2, 2}, {0, 0}, {1, 1}}},
    {"three by three", {2, 64, 64, {14, 14}, {}, {3, 3}, {1, 1}, {1, 1}, {1, 1}}},
    {"parts of tiles", {2, 48, 80, {7, 5}, {}, {3, 3}, {1, 1}, {1, 1}, {1, 1}}},
    {"strides, a wide kernel", {2, 32, 32, {15, 11}, {}, {5, 3}, {2, 3}, {2, 0}, {1, 1}}},
    {"holes", {1, 32, 32, {13, 13}, {}, {3, 3}, {1, 1}, {2, 2}, {2, 2}}},
    {"several runs of pixels", {9, 32, 64, {17, 17}, {}, {3, 3}, {1, 1}, {1, 1}, {1, 1}}},
    {"pictures", {2, 3, 64, {30, 29}, {}, {7, 7}, {2, 2}, {3, 3}, {1, 1}}},
    {"pictures, wide windows", {2, 3, 96, {31, 31}, {}, {11, 11}, {4, 4}, {0, 0}, {1, 1}}},
    {"larger sums than pixels", {1, 256, 256, {3, 3}, {}, {3, 3}, {1, 1}, {1, 1}, {1, 1}}},
};

struct Options {
    int threads;
    bool relu, add;  // whether a ReLU is behind the convolution; whether to add to the gradients that are there
};

std::vector<bf16> whole_numbers(int64_t count, int most, std::mt19937& generator) {
    std::vector<bf16> result(count);
    std::uniform_int_distribution<int> number(-most, most);
    for (bf16& each : result) store(float(number(generator)), each);
    return result;
}

// Adds what run() has to add to the gradients of weights and bias, computed by their definition.
void add_expected(const ConvolutionShape& s, const std::vector<bf16>& x, const std::vector<bf16>& dy,
                  std::vector<float>& weights, std::vector<float>& bias) {
    for (int64_t pixel = 0; pixel < s.pixels(); pixel++) {
        const int64_t image = pixel / (s.out[0] * s.out[1]), row = pixel / s.out[1] % s.out[0],
                      column = pixel % s.out[1];
        for (int64_t o = 0; o < s.outputs; o++) {
            const float given = number(dy[pixel * s.outputs + o]);
            bias[o] += given;
            if (given == 0) continue;
            for (int64_t tap = 0; tap < s.kernel[0] * s.kernel[1]; tap++) {
                const int64_t y = row * s.stride[0] - s.pad[0] + tap / s.kernel[1] * s.step[0];
                const int64_t z = column * s.stride[1] - s.pad[1] + tap % s.kernel[1] * s.step[1];
                if (y < 0 || y >= s.in[0] || z < 0 || z >= s.in[1]) continue;
                const bf16* const seen = &x[((image * s.in[0] + y) * s.in[1] + z) * s.channels];
                float* const sums = &weights[(o * s.kernel[0] * s.kernel[1] + tap) * s.channels];
                for (int64_t c = 0; c < s.channels; c++) sums[c] += given * number(seen[c]);
            }
        }
    }
}

bool is_right(ConvolutionShape s, const Options& options) {
    for (int axis : {0, 1})
        s.out[axis] = (s.in[axis] + 2 * s.pad[axis] - s.step[axis] * (s.kernel[axis] - 1) - 1) / s.stride[axis] + 1;
    std::mt19937 generator(2);
    const auto x = whole_numbers(s.images * s.in[0] * s.in[1] * s.channels, 3, generator);
    const auto result = whole_numbers(s.pixels() * s.outputs, 1, generator);
    auto given = whole_numbers(s.pixels() * s.outputs, 3, generator), passed = given;
    if (options.relu) {
        for (size_t i = 0; i < passed.size(); i++)
            if (number(result[i]) <= 0) passed[i].bits = 0;
    }

    const float before = options.add ? 5 : 0, unwritten = options.add ? 5 : -1e9f;
    const int64_t weights_count = s.outputs * s.kernel[0] * s.kernel[1] * s.channels;
    std::vector<float> expected(weights_count, before), expected_bias(s.outputs, before);
    std::vector<float> weights(weights_count, unwritten), bias(s.outputs, unwritten);
    add_expected(s, x, passed, expected, expected_bias);

    const AmxGradient job(s, options.threads);
    constexpr int64_t fence = 4096;
    constexpr char mark = 0x5a;
    const int64_t bytes = whole_lines(job.scratch_bytes());
    char* const scratch = static_cast<char*>(std::aligned_alloc(size_t(cache_line), size_t(bytes + fence)));
    std::memset(scratch, mark, size_t(bytes + fence));
    job.run(x.data(), {given.data(), options.relu ? result.data() : nullptr, given.data()},
            {weights.data(), options.add}, {bias.data(), options.add}, scratch);
    bool inside = true;
    for (int64_t i = job.scratch_bytes(); i < bytes + fence; i++) inside = inside && scratch[i] == mark;
    std::free(scratch);
    return inside && weights == expected && bias == expected_bias &&
           std::memcmp(given.data(), passed.data(), passed.size() * sizeof(bf16)) == 0;
}

}  // namespace

int main() {
    int wrong = 0, done = 0;
    for (const Case& each : cases) {
        for (int threads : {1, 2, 3, 4, 6}) {
            for (bool relu : {false, true}) {
                for (bool add : {false, true}) {
                    done++;
                    if (AmxGradient::suits(each.shape) && is_right(each.shape, {threads, relu, add})) continue;
                    wrong++;
                    std::printf("wrong: %s, %d threads%s%s\n", each.name, threads, relu ? ", ReLU" : "",
                                add ? ", added" : "");
                }
            }
        }
    }
    std::printf("%d of %d wrong\n", wrong, done);
    return wrong > 0;
}
