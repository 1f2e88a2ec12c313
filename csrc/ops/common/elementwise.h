// Helpers of ops that treat all elements alike, in any layout: they run over the raw memory, with its padding.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/channel_rows.h"
#include "kernels/chunks.h"
#include "kernels/vectorised.h"
#include "op.h"

namespace engine {

// The elements of a tensor, float32 or bf16.
class Numbers {
public:
    Numbers() = default;
    Numbers(const dnnl::memory& memory)  // NOLINT: what a memory holds
        : memory_(memory),
          bytes_(memory.get_desc().get_size()),  // kept, because get_desc() copies, which allocates
          narrow_(memory.get_desc().get_data_type() == dnnl::memory::data_type::bf16) {}

    // Returns the number of elements in memory, with those of padding.
    int64_t count() const { return int64_t(bytes_) / (narrow_ ? 2 : 4); }
    // Calls work(T()), where T is the type of the elements.
    template <typename Work>
    void typed(const Work& work) const {
        narrow_ ? work(bf16()) : work(float());
    }
    template <typename T>
    T* as() const {
        return address<T>(memory_);
    }
    // Sets all elements to 0.
    void clear() const;
    // Sets the elements of padding to 0.
    void clear_padding(const ChannelRows& rows) const;

private:
    dnnl::memory memory_;
    size_t bytes_ = 0;
    bool narrow_ = false;
};

// Folds two or more pieces at(0), at(1), ... of at most chunk_size elements into the piece y. Calls combine(i, so_far,
// at(i), into) for every i from 1 on; `into` is y for the last one, and a float32 buffer before. y may be any of the
// pieces, because it is written after all have been read.
template <typename T, typename At, typename Combine>
void fold(size_t pieces, const At& at, T* y, const Combine& combine) {
    if (pieces == 2) return combine(1, at(0), at(1), y);
    alignas(64) float partial[chunk_size];
    combine(1, at(0), at(1), partial);
    for (size_t i = 2; i + 1 < pieces; i++) combine(i, partial, at(i), partial);
    combine(pieces - 1, partial, at(pieces - 1), y);
}

// Folds all of x, two or more, into y, piece by piece, in parallel. Calls combine(i, so_far, piece of x[i], into,
// begin, length).
template <typename Combine>
void fold_chunks(const std::vector<Numbers>& x, const Numbers& y, const Combine& combine) {
    y.typed([&](auto type) {
        using T = decltype(type);
        in_chunks(y.count(), [&](int64_t begin, int64_t length) {
            const auto at = [&](size_t i) -> const T* { return x[i].template as<T>() + begin; };
            fold(x.size(), at, y.as<T>() + begin, [&](size_t i, const auto* so_far, const auto* term, auto* into) {
                combine(i, so_far, term, into, begin, length);
            });
        });
    });
}

constexpr float no_floor = -std::numeric_limits<float>::infinity();

// y = max(coefficient x, floor), in which NaN stays NaN. y may be x.
template <typename T>
ENGINE_VECTORISED void scaled(const T* x, float coefficient, float floor, T* y, int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) {
        const float product = coefficient * number(x[i]);
        store(product < floor ? floor : product, y[i]);
    }
}

// y = sum of coefficients[i] x[i]; with `relu`, 0 where that is negative. y may be any of x.
void weighted_sum(const std::vector<Numbers>& x, const std::vector<float>& coefficients, const Numbers& y,
                  bool relu = false);

}  // namespace engine
