#include "amx_gradient.h"

#include <omp.h>

#include <algorithm>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12 warns of its own intrinsics
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include "amx_gradient_worker.h"

namespace engine {

AmxGradient::AmxGradient(const ConvolutionShape& shape, int64_t threads)
    : shape_(shape), together_(columns_together(shape)), threads_(threads) {
    const int64_t channels = shape.channels * together_;
    swapped_ = taps() == 1 && channels < shape.outputs;
    left_ = swapped_ ? channels : shape.outputs;
    right_ = swapped_ ? shape.outputs : channels;
    // Threads share the pixels, unless their sums would then be larger than what they read.
    const int64_t bytes = pixels() * (left_ + right_) * int64_t(sizeof(bf16));
    for (sides_ = 1; sides_ < threads; sides_++)
        if (threads % sides_ == 0 && threads / sides_ * block_floats() * int64_t(sizeof(float)) <= bytes) break;
    sides_ = std::min(sides_, pairs_of(right_));
    parts_ = std::min(threads / sides_, chunks_of(pixels()));
    // Both matrices in the first-level cache, if that makes a decent run; else the left one in the second.
    constexpr int64_t first_cache = 40 << 10, second_cache = 640 << 10, decent = 4 * wide, longest = 18 * wide;
    const int64_t pixel = pairs_of(left_) * wide * int64_t(sizeof(bf16));
    run_ = first_cache / (pixel + wide * int64_t(sizeof(bf16)));
    if (run_ < decent) run_ = std::clamp(second_cache / pixel, 2 * wide, longest);
    run_ = run_ / wide * wide;
}

int64_t AmxGradient::block_floats() const { return taps() * pairs_of(left_) * pairs_of(right_) * pair_floats; }

int64_t AmxGradient::scratch_bytes() const {
    return parts_ * block_floats() * int64_t(sizeof(float)) + threads_ * Room(*this).all();
}

}  // namespace engine

#if defined(__x86_64__)

#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,amx-tile,amx-bf16")

namespace engine {

bool AmxGradient::available() {
    static const bool result = [] {
        unsigned a, b, c, d;
        constexpr unsigned amx_bf16 = 1u << 22, amx_tile = 1u << 24;
        if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & amx_bf16) || !(d & amx_tile)) return false;
        constexpr int ask_for_state = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM: tiles are the kernel's to grant
        return __builtin_cpu_supports("avx512bf16") && syscall(SYS_arch_prctl, ask_for_state, tile_data) == 0;
    }();
    return result;
}

float* AmxGradient::sums(char* scratch, int64_t part) const {
    return reinterpret_cast<float*>(scratch) + part * block_floats();
}

char* AmxGradient::room(char* scratch, int64_t thread) const {
    return reinterpret_cast<char*>(sums(scratch, parts_)) + thread * Room(*this).all();
}

void AmxGradient::work(int64_t thread, const bf16* x, const Incoming& dy, bool wants_bias, char* scratch) const {
    const int64_t part = thread / sides_;
    if (part >= parts_) return;
    const TileConfig config;
    asm volatile("" ::"r"(&config) : "memory");
    _tile_loadconfig(&config);
    Worker(*this, thread, x, dy, sums(scratch, part), room(scratch, thread)).run(part, wants_bias);
    _tile_release();
}

namespace {

inline void write(__m512i values, __mmask16 which, bool add, float* to) {
    __m512 sum = __m512(values);
    if (add) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(which, to));
    _mm512_mask_storeu_ps(to, which, sum);
}

}  // namespace

// Adds up the parts' sums, a share of them in each thread, and brings channels into their order.
void AmxGradient::collect(int64_t thread, const Gradient& weights, const Gradient& bias, char* scratch) const {
    const __m512i first_half = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23),
                  second_half = _mm512_add_epi32(first_half, _mm512_set1_epi32(8));
    const int64_t left_pairs = pairs_of(left_), right_pairs = pairs_of(right_), pairs = left_pairs * right_pairs;
    const int64_t all = taps() * pairs, begin = all * thread / threads_, end = all * (thread + 1) / threads_;
    for (int64_t block = begin; block < end; block++) {
        __m512 total[64];
        for (int i = 0; i < 64; i++) {
            total[i] = _mm512_load_ps(sums(scratch, 0) + block * pair_floats + i * 16);
            for (int64_t part = 1; part < parts_; part++)
                total[i] = _mm512_add_ps(total[i], _mm512_load_ps(sums(scratch, part) + block * pair_floats + i * 16));
        }
        __m512i ordered[2][32];  // [half of the right channels][left channel]
        for (int i = 0; i < 32; i++) {
            const int at = i % 8 / 4 * 32 + i / 8 * 4 + i % 4;
            const __m512 a = total[at], b = total[at + 16];
            ordered[0][i] = __m512i(_mm512_permutex2var_ps(a, first_half, b));
            ordered[1][i] = __m512i(_mm512_permutex2var_ps(a, second_half, b));
        }
        const int64_t tap = block / pairs, left = block % left_pairs * wide,
                      right = block / left_pairs % right_pairs * wide;
        for (int64_t half : {0, 1}) {
            if (swapped_) {
                transpose16(ordered[half]);
                transpose16(ordered[half] + 16);
                for (int64_t i = 0; i < 16 && right + half * 16 + i < right_; i++)
                    for (int64_t j = 0; j < 32 && left + j < left_; j += 16)
                        write(ordered[half][j + i], __mmask16(mask_of(left_ - left - j)), weights.add,
                              weights.values + (right + half * 16 + i) * left_ + left + j);
                continue;
            }
            if (right + half * 16 >= right_) continue;
            const __mmask16 mask = __mmask16(mask_of(right_ - right - half * 16));
            for (int64_t i = 0; i < 32 && left + i < left_; i++)
                write(ordered[half][i], mask, weights.add,
                      weights.values + ((left + i) * taps() + tap) * right_ + right + half * 16);
        }
    }
    if (thread > 0 || !bias.values) return;
    for (int64_t output = 0; output < shape_.outputs; output++) {
        double sum = bias.add ? bias.values[output] : 0;
        for (int64_t part = 0; part < parts_; part++) {
            const Room sizes(*this);
            const char* const at = room(scratch, part * sides_) + sizes.all() - sizes.bias;
            sum += reinterpret_cast<const double*>(at)[output];
        }
        bias.values[output] = float(sum);
    }
}

void AmxGradient::run(const bf16* x, const Incoming& given, const Gradient& weights, const Gradient& bias,
                      char* scratch) const {
    // Several threads that read the same pixels cannot each close the ReLU on their way.
    const bool first_closed = given.result && sides_ > 1;
    const Incoming closed{given.passed, nullptr, given.passed}, &dy = first_closed ? closed : given;
#pragma omp parallel num_threads(int(threads_))
    {
        const int64_t first = omp_get_thread_num(), step = omp_get_num_threads();
        if (first_closed) {
            const int64_t all = pixels();
            for (int64_t thread = first; thread < threads_; thread += step)
                pass_positive(given, all * thread / threads_ * shape_.outputs,
                              all * (thread + 1) / threads_ * shape_.outputs);
#pragma omp barrier
        }
        for (int64_t thread = first; thread < threads_; thread += step)
            work(thread, x, dy, bias.values != nullptr, scratch);
#pragma omp barrier
        for (int64_t thread = first; thread < threads_; thread += step) collect(thread, weights, bias, scratch);
    }
}

}  // namespace engine

#else

namespace engine {

bool AmxGradient::available() { return false; }
void AmxGradient::run(const bf16*, const Incoming&, const Gradient&, const Gradient&, char*) const {}

}  // namespace engine
#endif
