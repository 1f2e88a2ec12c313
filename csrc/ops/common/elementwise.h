// What ops share that treat all elements alike, whatever the layout: they run over the raw memory, padding included.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/channel_rows.h"
#include "kernels/chunks.h"
#include "op.h"

namespace engine {

// The elements of a tensor, float32 or bf16, as pieces of float32; `buffer` holds a piece (chunk_size).
class Numbers {
public:
    Numbers() = default;
    Numbers(const dnnl::memory& memory)  // NOLINT: what a memory holds
        : memory_(memory), narrow_(memory.get_desc().get_data_type() == dnnl::memory::data_type::bf16) {}

    // Elements in memory, padding included.
    int64_t count() const { return int64_t(memory_.get_desc().get_size()) / (narrow_ ? 2 : 4); }
    // The elements from `begin` on: where they lie, or widened into the buffer.
    const float* read(int64_t begin, int64_t length, float* buffer) const;
    // Where to write such a piece; close() brings it to where it belongs.
    float* open(int64_t begin, float* buffer) const { return narrow_ ? buffer : floats() + begin; }
    void close(int64_t begin, int64_t length, const float* buffer) const;
    // All of them 0.
    void clear() const;
    void clear_padding(const ChannelRows& rows) const;

private:
    float* floats() const { return address<float>(memory_); }

    dnnl::memory memory_;
    bool narrow_ = false;
};

// Folds x[0], x[1], ... into y, piece by piece: combine(i, so_far, x[i], into, begin, length) for every i from 1 on.
// All x are read before y is written, so y may be any of them.
template <typename Combine>
void fold_chunks(const std::vector<Numbers>& x, const Numbers& y, int64_t count, const Combine& combine) {
    in_chunks(count, [&](int64_t begin, int64_t length) {
        alignas(64) float partial[chunk_size], term[chunk_size];
        const float* so_far = x[0].read(begin, length, partial);
        float* into = partial;
        for (size_t i = 1; i < x.size(); i++) {
            if (i + 1 == x.size()) into = y.open(begin, partial);
            combine(i, so_far, x[i].read(begin, length, term), into, begin, length);
            so_far = into;
        }
        y.close(begin, length, into);
    });
}

// y = sum of coefficients[i] x[i], or 0 where that is negative with `relu`; y may be any x.
void weighted_sum(const std::vector<Numbers>& x, const std::vector<float>& coefficients, const Numbers& y,
                  int64_t count, bool relu = false);

// The same for one piece of one x.
void scaled(const float* x, float coefficient, float* y, int64_t length);

}  // namespace engine
