// The kernels behind norm_rows.h, for one instruction set. Each has a file that includes this header after it has told
// the compiler what to use, and has defined ENGINE_REGISTER, how many numbers a register then holds. Vectors are GCC's
// own, of 8 or 16 numbers; smaller registers hold them in pieces. Nothing of the standard library is called: the linker
// might take such a function from here for files that must run on any processor.

#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 warns of its own intrinsics

namespace engine {
namespace {

constexpr int wide = ENGINE_REGISTER == 8 ? 8 : 16;  // GCC passes a vector in pieces through memory
typedef float Vector __attribute__((vector_size(4 * wide)));
typedef uint32_t Bits __attribute__((vector_size(4 * wide)));
typedef uint16_t Halves __attribute__((vector_size(2 * wide)));

ENGINE_INLINE Vector load(const float* from) {
    Vector result;
    __builtin_memcpy(&result, from, sizeof(result));
    return result;
}

ENGINE_INLINE Vector load(const bf16* from) {
#if ENGINE_REGISTER == 16
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return Vector(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
#else
    Halves halves;
    __builtin_memcpy(&halves, from, sizeof(halves));
    return Vector(__builtin_convertvector(halves, Bits) << 16);
#endif
}

template <bool past_caches>
ENGINE_INLINE void store(float* into, Vector value) {
#if ENGINE_REGISTER == 16
    if (past_caches) return _mm512_stream_ps(into, __m512(value));
#endif
    __builtin_memcpy(into, &value, sizeof(value));
}

template <bool past_caches>
ENGINE_INLINE void store(bf16* into, Vector value) {
#if ENGINE_REGISTER == 16
    const __m256i halves = __m256i(_mm512_cvtneps_pbh(__m512(value)));
    if (past_caches) return _mm256_stream_si256(reinterpret_cast<__m256i*>(into), halves);
#else
    const Bits bits = Bits(value);
    const Bits rounded = bits + 0x7fff + (bits >> 16 & 1), quiet = bits | 0x400000;
    const Halves halves = __builtin_convertvector(((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded) >> 16, Halves);
#endif
    __builtin_memcpy(into, &halves, sizeof(halves));
}

// Returns a b + c.
ENGINE_INLINE Vector multiply_add(Vector a, Vector b, Vector c) {
#if ENGINE_REGISTER == 16
    return Vector(_mm512_fmadd_ps(__m512(a), __m512(b), __m512(c)));
#else
    return a * b + c;
#endif
}

// Orders stores past the caches before those that follow, which the processor does not do by itself.
template <bool past_caches>
ENGINE_INLINE void finish_stores() {
#if ENGINE_REGISTER == 16
    if (past_caches) _mm_sfence();
#endif
}

// Returns the value where an activation was open, above 0 and below the ceiling (NaN: none), and 0 elsewhere.
ENGINE_INLINE Vector passed(Vector where, Vector ceiling, Vector value) {
    const Vector below = where >= ceiling ? Vector{} : value;
    return where > 0 ? below : Vector{};
}

// Some of a row's lanes, from `first` on: whole vectors, half of one (in blocks for smaller registers), or the last
// `rest` numbers.
enum class Kind { whole, half, rest };

template <typename T, int vectors, Kind kind>
struct Row {
    static constexpr int count = vectors;
    int64_t first, rest;

    ENGINE_INLINE int64_t bytes() const { return (kind == Kind::half ? wide / 2 : rest) * sizeof(T); }
    ENGINE_INLINE Vector get(const T* row, int v) const {
        if (kind == Kind::whole) return load(row + first + v * wide);
        T padded[wide] = {};
        __builtin_memcpy(padded, row + first, bytes());
        return load(padded);
    }
    template <bool past_caches>
    ENGINE_INLINE void put(T* row, int v, Vector value) const {
        if (kind == Kind::whole) return store<past_caches>(row + first + v * wide, value);
        T padded[wide];
        store<false>(padded, value);
        __builtin_memcpy(row + first, padded, bytes());
    }
    ENGINE_INLINE Vector coefficient(const float* values, int v, float missing = 0) const {
        if (!values) return Vector{} + missing;
        return Row<float, vectors, kind>{first, rest}.get(values, v);
    }
    ENGINE_INLINE void add_sum(float* sums, int v, Vector value) const {
        const Row<float, vectors, kind> row{first, rest};
        row.template put<false>(sums, v, row.get(sums, v) + value);
    }
    // Prefetches these lanes of a row a little after `row`, in each array that is not null.
    template <typename... Arrays>
    ENGINE_INLINE void fetch(const Panel& panel, int64_t row, const Arrays*... arrays) const {
        (fetch_row(arrays, later(panel, row) * panel.step), ...);
    }
    ENGINE_INLINE void fetch_x(const Panel& panel, int64_t row, const T* x) const {
        fetch_row(x, later(panel, row) * panel.x_step);
    }

private:
    ENGINE_INLINE static int64_t later(const Panel& panel, int64_t row) {
        return row + panel.lead < panel.reach ? row + panel.lead : panel.reach - 1;
    }
    ENGINE_INLINE void fetch_row(const T* array, int64_t at) const {
        constexpr int line = 64 / int(sizeof(T));
        if (!array) return;
#pragma GCC unroll 4
        for (int i = 0; i < vectors * wide; i += line) __builtin_prefetch(array + at + first + i);
    }
};

// The vectors of a row that are done at once. Of the registers that every processor has, one vector takes four.
constexpr int most_vectors = ENGINE_REGISTER < 8 ? 1 : 4;

// Calls body with pieces of a row that make up all its lanes.
template <typename T, typename Body>
ENGINE_INLINE void with_rows(int64_t lanes, const Body& body) {
    int64_t at = 0;
    for (; lanes - at >= most_vectors * wide; at += most_vectors * wide) body(Row<T, most_vectors, Kind::whole>{at, 0});
    if constexpr (most_vectors > 1) {
        if (lanes - at >= 2 * wide) {
            body(Row<T, 2, Kind::whole>{at, 0});
            at += 2 * wide;
        }
        if (lanes - at >= wide) {
            body(Row<T, 1, Kind::whole>{at, 0});
            at += wide;
        }
    }
    if (lanes - at == wide / 2) return body(Row<T, 1, Kind::half>{at, 0});
    if (lanes > at) body(Row<T, 1, Kind::rest>{at, lanes - at});
}

template <typename Body>
ENGINE_INLINE void with_flag(bool flag, const Body& body) {
    flag ? body(std::true_type()) : body(std::false_type());
}

template <typename T>
void sum_panel(const Panel& panel, const T* x, const float* near, float* sums, float* squares) {
    with_rows<T>(panel.lanes, [&](auto lanes) ENGINE_BODY {
        constexpr int count = decltype(lanes)::count, chains = most_vectors / count;  // independent additions
        Vector middle[count], sum[chains][count] = {}, square[chains][count] = {};
        for (int v = 0; v < count; v++) middle[v] = lanes.coefficient(near, v);
        const auto add_row = [&](int64_t row, int chain) ENGINE_BODY {
            lanes.fetch_x(panel, row, x);
#pragma GCC unroll 4
            for (int v = 0; v < count; v++) {
                const Vector away = lanes.get(x + row * panel.x_step, v) - middle[v];
                sum[chain][v] += away;
                square[chain][v] = multiply_add(away, away, square[chain][v]);
            }
        };
        int64_t row = 0;
        for (; row + chains <= panel.rows; row += chains)
#pragma GCC unroll 4
            for (int chain = 0; chain < chains; chain++) add_row(row + chain, chain);
        for (; row < panel.rows; row++) add_row(row, 0);
        for (int v = 0; v < count; v++) {
            for (int chain = 1; chain < chains; chain++) {
                sum[0][v] += sum[chain][v];
                square[0][v] += square[chain][v];
            }
            lanes.add_sum(sums, v, sum[0][v]);
            lanes.add_sum(squares, v, square[0][v]);
        }
    });
}

template <typename T>
void normalise_panel(const Panel& panel, const Normalisation<T>& job) {
    const Vector floor = Vector{} + (job.relu ? 0 : -__builtin_inff()), ceiling = Vector{} + job.ceiling;
    with_rows<T>(panel.lanes, [&](auto lanes) ENGINE_BODY {
        constexpr int count = decltype(lanes)::count;
        Vector mean[count], scale[count], shift[count];
        for (int v = 0; v < count; v++) {
            mean[v] = lanes.coefficient(job.mean, v);
            scale[v] = lanes.coefficient(job.scale, v);
            shift[v] = lanes.coefficient(job.shift, v);
        }
        with_flag(job.residual, [&](auto adds) ENGINE_BODY {
            with_flag(job.past_caches, [&](auto past_caches) ENGINE_BODY {
                for (int64_t row = 0; row < panel.rows; row++) {
                    const int64_t at = row * panel.step, x_at = row * panel.x_step;
                    lanes.fetch_x(panel, row, job.x);
                    lanes.fetch(panel, row, job.residual);
#pragma GCC unroll 4
                    for (int v = 0; v < count; v++) {
                        Vector value = multiply_add(lanes.get(job.x + x_at, v) - mean[v], scale[v], shift[v]);
                        if constexpr (adds) value += lanes.get(job.residual + at, v);
                        value = value < floor ? floor : value;
                        value = value > ceiling ? ceiling : value;
                        lanes.template put<decltype(past_caches)::value>(job.y + at, v, value);
                    }
                }
                finish_stores<decltype(past_caches)::value>();
            });
        });
    });
}

template <typename T>
void sum_gradient_of(const Panel& panel, const Gradient<T>& job, float* of_g, float* of_gx) {
    const Vector ceiling = Vector{} + job.ceiling;
    with_rows<T>(panel.lanes, [&](auto lanes) ENGINE_BODY {
        constexpr int count = decltype(lanes)::count, chains = count == most_vectors ? 1 : 2;
        Vector mean[count], scale[count], shift[count], g_sums[chains][count] = {}, gx_sums[chains][count] = {};
        for (int v = 0; v < count; v++) {
            mean[v] = lanes.coefficient(job.mean, v);
            scale[v] = lanes.coefficient(job.scale, v);
            shift[v] = lanes.coefficient(job.shift, v, 1);
        }
        with_flag(job.other, [&](auto two) ENGINE_BODY {
            with_flag(job.y, [&](auto from_y) ENGINE_BODY {
                with_flag(job.kept, [&](auto kept) ENGINE_BODY {
                    const auto add_row = [&](int64_t row, int chain) ENGINE_BODY {
                        const int64_t at = row * panel.step, x_at = row * panel.x_step;
                        lanes.fetch_x(panel, row, job.x);
                        lanes.fetch(panel, row, job.given, job.other, job.y);
#pragma GCC unroll 4
                        for (int v = 0; v < count; v++) {
                            const Vector away = lanes.get(job.x + x_at, v) - mean[v];
                            Vector g = lanes.get(job.given + at, v);
                            if constexpr (two) g += lanes.get(job.other + at, v);
                            if constexpr (from_y)
                                g = passed(lanes.get(job.y + at, v), ceiling, g);
                            else
                                g = passed(multiply_add(away, scale[v], shift[v]), ceiling, g);
                            if constexpr (kept) lanes.template put<false>(job.kept + at, v, g);
                            g_sums[chain][v] += g;
                            gx_sums[chain][v] = multiply_add(g, away, gx_sums[chain][v]);
                        }
                    };
                    int64_t row = 0;
                    for (; row + chains <= panel.rows; row += chains)
#pragma GCC unroll 2
                        for (int chain = 0; chain < chains; chain++) add_row(row + chain, chain);
                    for (; row < panel.rows; row++) add_row(row, 0);
                });
            });
        });
        for (int v = 0; v < count; v++) {
            for (int chain = 1; chain < chains; chain++) {
                g_sums[0][v] += g_sums[chain][v];
                gx_sums[0][v] += gx_sums[chain][v];
            }
            lanes.add_sum(of_g, v, g_sums[0][v]);
            lanes.add_sum(of_gx, v, gx_sums[0][v]);
        }
    });
}

template <typename T>
void write_gradient_of(const Panel& panel, const Gradient<T>& job, const float* a, const float* b, const float* c,
                       bool past_caches, T* wanted) {
    const Vector ceiling = Vector{} + job.ceiling;
    with_rows<T>(panel.lanes, [&](auto lanes) ENGINE_BODY {
        constexpr int count = decltype(lanes)::count;
        Vector mean[count], scale[count], shift[count], of_g[count], of_x[count], constant[count];
        for (int v = 0; v < count; v++) {
            mean[v] = lanes.coefficient(job.mean, v);
            scale[v] = lanes.coefficient(job.scale, v);
            shift[v] = lanes.coefficient(job.shift, v, 1);
            of_g[v] = lanes.coefficient(a, v);
            of_x[v] = lanes.coefficient(b, v);
            constant[v] = lanes.coefficient(c, v);
        }
        with_flag(job.scale, [&](auto masks) ENGINE_BODY {
            with_flag(past_caches, [&](auto past) ENGINE_BODY {
                for (int64_t row = 0; row < panel.rows; row++) {
                    const int64_t at = row * panel.step, x_at = row * panel.x_step;
                    lanes.fetch_x(panel, row, job.x);
                    lanes.fetch(panel, row, job.given);
#pragma GCC unroll 4
                    for (int v = 0; v < count; v++) {
                        const Vector away = lanes.get(job.x + x_at, v) - mean[v];
                        Vector g = lanes.get(job.given + at, v);
                        if constexpr (masks) g = passed(multiply_add(away, scale[v], shift[v]), ceiling, g);
                        const Vector value = multiply_add(of_g[v], g, multiply_add(of_x[v], away, constant[v]));
                        lanes.template put<decltype(past)::value>(wanted + at, v, value);
                    }
                }
                finish_stores<decltype(past)::value>();
            });
        });
    });
}

template <typename T>
constexpr NormKernels<T> all_kernels{sum_panel<T>, normalise_panel<T>, sum_gradient_of<T>, write_gradient_of<T>};

}  // namespace
}  // namespace engine
