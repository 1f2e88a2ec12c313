// Winograd's transforms behind winograd.h, for one instruction set. Each has a file that includes this header after it
// has told the compiler what to use, and has defined ENGINE_LANES, the channels of a block, as many as a register
// holds. Nothing of the standard library is called: the linker might take such a function from here for files that must
// run on any processor.

#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 warns of its own intrinsics

namespace engine {
namespace {

constexpr int64_t lanes = ENGINE_LANES;
constexpr int tile = winograd_tile;

typedef float Lanes __attribute__((vector_size(4 * lanes)));

Lanes& at(float* p) { return *reinterpret_cast<Lanes*>(p); }
const Lanes& at(const float* p) { return *reinterpret_cast<const Lanes*>(p); }

inline Lanes load(const float* p) { return at(p); }
inline void store(Lanes value, float* p) { at(p) = value; }
#if ENGINE_LANES == 16

inline Lanes load(const bf16* p) {
    const __m256i halves = _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
    return Lanes(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

inline void store(Lanes value, bf16* p) {  // rounds to nearest, ties to even; NaN stays NaN
    const __m512i bits = __m512i(value), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(__m512(value), __m512(value), _CMP_UNORD_Q);
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(1 << 22));
    const __m512i high = _mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16);
    _mm256_store_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(high));
}

#endif

// The transforms along one axis; the letters are the paper's names of their matrices.

// For kernels of 3 pixels, at the points 0, 1, -1, 2, -2 and infinity.
struct Of3 {
    static constexpr int kernel = 3, seen = winograd_seen(kernel);

    struct Input {  // B'
        static constexpr int from = seen, to = seen;
        static void apply(const Lanes* d, Lanes* o) {
            const Lanes a = d[4] - 4.f * d[2], b = d[3] - 4.f * d[1], c = d[4] - d[2], e = 2.f * (d[3] - d[1]);
            o[0] = 4.f * d[0] - 5.f * d[2] + d[4];
            o[1] = a + b;
            o[2] = a - b;
            o[3] = c + e;
            o[4] = c - e;
            o[5] = 4.f * d[1] - 5.f * d[3] + d[5];
        }
    };

    struct Output {  // A'
        static constexpr int from = seen, to = tile;
        static void apply(const Lanes* m, Lanes* o) {
            const Lanes sum = m[1] + m[2], difference = m[1] - m[2], sum2 = m[3] + m[4], difference2 = m[3] - m[4];
            o[0] = m[0] + sum + sum2;
            o[1] = difference + 2.f * difference2;
            o[2] = sum + 4.f * sum2;
            o[3] = difference + 8.f * difference2 + m[5];
        }
    };

    struct OutputGradient {  // A
        static constexpr int from = tile, to = seen;
        static void apply(const Lanes* g, Lanes* o) {
            const Lanes even = g[0] + g[2], odd = g[1] + g[3], even2 = g[0] + 4.f * g[2],
                        odd2 = 2.f * g[1] + 8.f * g[3];
            o[0] = g[0];
            o[1] = even + odd;
            o[2] = even - odd;
            o[3] = even2 + odd2;
            o[4] = even2 - odd2;
            o[5] = g[3];
        }
    };

    struct Weights {  // G
        static constexpr int from = kernel, to = seen;
        static void apply(const Lanes* w, Lanes* o) {
            const Lanes even = (w[0] + w[2]) * (1.f / 6), odd = w[1] * (1.f / 6);
            const Lanes even2 = w[0] * (1.f / 24) + w[2] * (1.f / 6), odd2 = w[1] * (1.f / 12);
            o[0] = w[0] * 0.25f;
            o[1] = -even - odd;
            o[2] = odd - even;
            o[3] = even2 + odd2;
            o[4] = even2 - odd2;
            o[5] = w[2];
        }
    };

    struct WeightGradient {  // G'
        static constexpr int from = seen, to = kernel;
        static void apply(const Lanes* g, Lanes* o) {
            const Lanes sum = (g[1] + g[2]) * (1.f / 6), sum2 = g[3] + g[4];
            o[0] = g[0] * 0.25f - sum + sum2 * (1.f / 24);
            o[1] = (g[2] - g[1]) * (1.f / 6) + (g[3] - g[4]) * (1.f / 12);
            o[2] = sum2 * (1.f / 6) - sum + g[5];
        }
    };
};

// For kernels of 5 pixels, at the points 0, 1, -1, 2, -2, 1/2, -1/2 and infinity.
struct Of5 {
    static constexpr int kernel = 5, seen = winograd_seen(kernel);

    struct Input {  // B'
        static constexpr int from = seen, to = seen;
        static void apply(const Lanes* d, Lanes* o) {
            const Lanes a = d[2] + d[6] - 4.25f * d[4], b = d[1] + d[5] - 4.25f * d[3];
            const Lanes c = 0.25f * d[2] - 1.25f * d[4] + d[6], e = 0.5f * d[1] - 2.5f * d[3] + 2.f * d[5];
            const Lanes f = 4.f * d[2] - 5.f * d[4] + d[6], g = 2.f * d[1] - 2.5f * d[3] + 0.5f * d[5];
            o[0] = d[0] - d[6] + 5.25f * (d[4] - d[2]);
            o[1] = a + b;
            o[2] = a - b;
            o[3] = c + e;
            o[4] = c - e;
            o[5] = f + g;
            o[6] = f - g;
            o[7] = d[7] - d[1] + 5.25f * (d[3] - d[5]);
        }
    };

    struct Output {  // A'
        static constexpr int from = seen, to = tile;
        static void apply(const Lanes* m, Lanes* o) {
            const Lanes sum = m[1] + m[2], sum2 = m[3] + m[4], sum3 = m[5] + m[6];
            const Lanes difference = m[1] - m[2], difference2 = m[3] - m[4], difference3 = m[5] - m[6];
            o[0] = m[0] + sum + sum2 + sum3;
            o[1] = difference + 2.f * difference2 + 0.5f * difference3;
            o[2] = sum + 4.f * sum2 + 0.25f * sum3;
            o[3] = difference + 8.f * difference2 + 0.125f * difference3 + m[7];
        }
    };

    struct OutputGradient {  // A
        static constexpr int from = tile, to = seen;
        static void apply(const Lanes* g, Lanes* o) {
            const Lanes even = g[0] + g[2], even2 = g[0] + 4.f * g[2], even3 = g[0] + 0.25f * g[2];
            const Lanes odd = g[1] + g[3], odd2 = 2.f * g[1] + 8.f * g[3], odd3 = 0.5f * g[1] + 0.125f * g[3];
            o[0] = g[0];
            o[1] = even + odd;
            o[2] = even - odd;
            o[3] = even2 + odd2;
            o[4] = even2 - odd2;
            o[5] = even3 + odd3;
            o[6] = even3 - odd3;
            o[7] = g[3];
        }
    };

    struct Weights {  // G
        static constexpr int from = kernel, to = seen;
        static void apply(const Lanes* w, Lanes* o) {
            const Lanes even = (w[0] + w[2] + w[4]) * (-2.f / 9), odd = (w[1] + w[3]) * (-2.f / 9);
            const Lanes even2 = (w[0] + 4.f * w[2] + 16.f * w[4]) * (1.f / 90);
            const Lanes odd2 = (w[1] + 4.f * w[3]) * (1.f / 45);
            const Lanes even3 = (16.f * w[0] + 4.f * w[2] + w[4]) * (2.f / 45);
            const Lanes odd3 = (4.f * w[1] + w[3]) * (4.f / 45);
            o[0] = w[0];
            o[1] = even + odd;
            o[2] = even - odd;
            o[3] = even2 + odd2;
            o[4] = even2 - odd2;
            o[5] = even3 + odd3;
            o[6] = even3 - odd3;
            o[7] = w[4];
        }
    };

    struct WeightGradient {  // G'
        static constexpr int from = seen, to = kernel;
        static void apply(const Lanes* g, Lanes* o) {
            const Lanes sum = (g[1] + g[2]) * (-2.f / 9), difference = (g[1] - g[2]) * (-2.f / 9);
            const Lanes sum2 = (g[3] + g[4]) * (1.f / 90), difference2 = (g[3] - g[4]) * (1.f / 45);
            const Lanes sum3 = (g[5] + g[6]) * (2.f / 45), difference3 = (g[5] - g[6]) * (4.f / 45);
            o[0] = g[0] + sum + sum2 + 16.f * sum3;
            o[1] = difference + difference2 + 4.f * difference3;
            o[2] = sum + 4.f * sum2 + 4.f * sum3;
            o[3] = difference + 4.f * difference2 + difference3;
            o[4] = sum + 16.f * sum2 + sum3 + g[7];
        }
    };
};

// Transforms a square along both axes.
template <typename Transform>
inline void transform(const Lanes (&in)[Transform::from][Transform::from], Lanes (&out)[Transform::to][Transform::to]) {
    Lanes half[Transform::to][Transform::from];
    for (int j = 0; j < Transform::from; j++) {
        Lanes column[Transform::from], result[Transform::to];
        for (int i = 0; i < Transform::from; i++) column[i] = in[i][j];
        Transform::apply(column, result);
        for (int i = 0; i < Transform::to; i++) half[i][j] = result[i];
    }
    for (int i = 0; i < Transform::to; i++) Transform::apply(half[i], out[i]);
}

// Where tile t begins: its image, row and column of outputs.
struct Place {
    Place(const Tiles& tiles, int64_t t)
        : image((tiles.first + t) / (tiles.rows * tiles.columns)),
          row((tiles.first + t) / tiles.columns % tiles.rows * tile),
          column((tiles.first + t) % tiles.columns * tile) {}
    int64_t image, row, column;
};

int64_t plane(const BlockedImages& images, int64_t image, int64_t block) {
    return (image * images.all_blocks + images.first_block + block) * images.h * images.w * lanes;
}

// Reads a square of pixels from (row, column) on; they are zero outside of the image.
template <int size, typename T>
inline void read_square(const BlockedImages& images, const T* x, int64_t row, int64_t column,
                        Lanes (&square)[size][size]) {
    const bool inside = row >= 0 && column >= 0 && row + size <= images.h && column + size <= images.w;
    for (int i = 0; i < size; i++) {
        const T* const line = x + ((row + i) * images.w + column) * lanes;
        for (int j = 0; j < size; j++) {
            const bool there =
                inside || (row + i >= 0 && row + i < images.h && column + j >= 0 && column + j < images.w);
            square[i][j] = there ? load(line + j * lanes) : Lanes{};
        }
    }
}

template <int seen>
inline void write_points(const Lanes (&points)[seen][seen], const Points& to, int64_t offset) {
    for (int i = 0; i < seen; i++)
        for (int j = 0; j < seen; j++) at(to.values + (i * seen + j) * to.stride + offset) = points[i][j];
}

template <int seen>
inline void read_points(const Points& from, int64_t offset, Lanes (&points)[seen][seen]) {
    for (int i = 0; i < seen; i++)
        for (int j = 0; j < seen; j++) points[i][j] = at(from.values + (i * seen + j) * from.stride + offset);
}

template <typename Of, typename T>
void input(const BlockedImages& images, const T* x, int64_t pad, const Tiles& tiles, const Points& to) {
#pragma omp parallel for collapse(2) schedule(static)
    for (int64_t t = 0; t < tiles.count; t++) {
        for (int64_t block = 0; block < images.blocks; block++) {
            const Place place(tiles, t);
            Lanes square[Of::seen][Of::seen], points[Of::seen][Of::seen];
            read_square(images, x + plane(images, place.image, block), place.row - pad, place.column - pad, square);
            transform<typename Of::Input>(square, points);
            write_points(points, to, (t * images.blocks + block) * lanes);
        }
    }
}

template <typename Of, typename T>
void output(const BlockedImages& images, const Points& from, const Tiles& tiles, const float* bias, const T* added,
            bool relu, T* y) {
#pragma omp parallel for collapse(2) schedule(static)
    for (int64_t t = 0; t < tiles.count; t++) {
        for (int64_t block = 0; block < images.blocks; block++) {
            const Place place(tiles, t);
            const int64_t begin = plane(images, place.image, block);
            const Lanes constant = bias ? at(bias + (images.first_block + block) * lanes) : Lanes{};
            Lanes points[Of::seen][Of::seen], result[tile][tile];
            read_points(from, (t * images.blocks + block) * lanes, points);
            transform<typename Of::Output>(points, result);
            for (int64_t i = 0; i < tile && place.row + i < images.h; i++) {
                for (int64_t j = 0; j < tile && place.column + j < images.w; j++) {
                    const int64_t pixel = begin + ((place.row + i) * images.w + place.column + j) * lanes;
                    Lanes value = result[i][j] + constant;
                    if (added) value += load(added + pixel);
                    if (relu) value = value < 0.f ? Lanes{} : value;  // NaN stays NaN
                    store(value, y + pixel);
                }
            }
        }
    }
}

template <typename Of, typename T>
void output_gradient(const BlockedImages& images, const T* dy, const Tiles& tiles, const Points& to) {
#pragma omp parallel for collapse(2) schedule(static)
    for (int64_t t = 0; t < tiles.count; t++) {
        for (int64_t block = 0; block < images.blocks; block++) {
            const Place place(tiles, t);
            Lanes square[tile][tile], points[Of::seen][Of::seen];
            read_square(images, dy + plane(images, place.image, block), place.row, place.column, square);
            transform<typename Of::OutputGradient>(square, points);
            write_points(points, to, (t * images.blocks + block) * lanes);
        }
    }
}

template <typename Of>
void weights(const float* weights, int64_t outputs, int64_t inputs, bool turned, const Points& to) {
    constexpr int kernel = Of::kernel;
    const int64_t output_blocks = outputs / lanes;
#pragma omp parallel for collapse(2) schedule(static)
    for (int64_t input = 0; input < inputs; input++) {
        for (int64_t block = 0; block < output_blocks; block++) {
            const float* const from =
                weights +
                ((block * (inputs / lanes) + input / lanes) * kernel * kernel * lanes + input % lanes) * lanes;
            Lanes square[kernel][kernel], points[Of::seen][Of::seen];
            for (int k = 0; k < kernel * kernel; k++) {
                const int which = turned ? kernel * kernel - 1 - k : k;
                square[k / kernel][k % kernel] = at(from + which * lanes * lanes);
            }
            transform<typename Of::Weights>(square, points);
            write_points(points, to, input * outputs + block * lanes);
        }
    }
}

template <typename Of>
void weights_gradient(const Points& from, int64_t outputs, int64_t inputs, float* gradient) {
    constexpr int kernel = Of::kernel;
    const int64_t output_blocks = outputs / lanes;
#pragma omp parallel for collapse(2) schedule(static)
    for (int64_t input = 0; input < inputs; input++) {
        for (int64_t block = 0; block < output_blocks; block++) {
            float* const to =
                gradient +
                ((block * (inputs / lanes) + input / lanes) * kernel * kernel * lanes + input % lanes) * lanes;
            Lanes points[Of::seen][Of::seen], square[kernel][kernel];
            read_points(from, input * outputs + block * lanes, points);
            transform<typename Of::WeightGradient>(points, square);
            for (int k = 0; k < kernel * kernel; k++) at(to + k * lanes * lanes) = square[k / kernel][k % kernel];
        }
    }
}

template <typename T>
void bias_gradient(const BlockedImages& images, int64_t count, const T* dy, float* gradient) {
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < images.blocks; block++) {
        double sums[lanes] = {};
        for (int64_t image = 0; image < count; image++) {
            const T* from = dy + plane(images, image, block);
            for (int64_t row = 0; row < images.h; row++) {
                Lanes sum{};
                for (int64_t column = 0; column < images.w; column++, from += lanes) sum += load(from);
                for (int64_t lane = 0; lane < lanes; lane++) sums[lane] += sum[lane];
            }
        }
        for (int64_t lane = 0; lane < lanes; lane++) gradient[block * lanes + lane] = float(sums[lane]);
    }
}

template <typename Of, typename T>
constexpr WinogradKernels<T> all_kernels{
    lanes, input<Of, T>, output<Of, T>, output_gradient<Of, T>, weights<Of>, weights_gradient<Of>, bias_gradient<T>,
};

template <typename T>
const WinogradKernels<T>* kernels_of(int64_t kernel) {
    return kernel == 3 ? &all_kernels<Of3, T> : kernel == 5 ? &all_kernels<Of5, T> : nullptr;
}

}  // namespace
}  // namespace engine
