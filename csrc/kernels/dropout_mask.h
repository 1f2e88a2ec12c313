// Random choices, such as what Dropout drops, as a function of the seed, the layer's name, the step, the sample's place
// in the global batch and the element's place in the sample.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/whole.h"

namespace engine {

// Steele, Lea and Flood's splitmix64, which turns neighbouring numbers into unrelated ones. Its sequence is that of
// numbers `golden` apart.
constexpr uint64_t golden = 0x9e3779b97f4a7c15u;
inline uint64_t mix(uint64_t x) {
    x += golden;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

// Does the same with 32 bits, which can be vectorised (constants: Wellons' lowbias32).
inline __attribute__((always_inline)) uint32_t mix32(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

// The choices for one sample.
struct DropoutMask {
    uint32_t low, high;  // the halves of the sample's key
    uint32_t threshold;
    float scale;
    // Returns 0 if an element is dropped, else scale.
    float at(uint32_t element) const __attribute__((always_inline)) { return bits(element) >= threshold ? scale : 0.f; }
    // Returns a number in [0, 1).
    float uniform(uint32_t element) const { return float(bits(element) >> 8) * 0x1p-24f; }
    uint32_t bits(uint32_t element) const __attribute__((always_inline)) { return mix32(mix32(element + low) ^ high); }
};

// The choices for one layer.
class DropoutMasks {
public:
    explicit DropoutMasks(const std::string& layer, double ratio = 0, double scale = 1)
        : threshold_(uint32_t(whole(ratio * 4294967296.0))), scale_(float(scale)) {
        for (const unsigned char letter : layer) name_hash_ = (name_hash_ ^ letter) * 0x100000001b3u;
    }

    // Returns those for a sample of the global batch.
    DropoutMask of(uint64_t seed, uint64_t step, uint64_t sample) const {
        const uint64_t key = mix(mix(mix(seed ^ name_hash_) + step) + sample);
        return {uint32_t(key), uint32_t(key >> 32), threshold_, scale_};
    }

private:
    uint64_t name_hash_ = 0xcbf29ce484222325u;  // FNV-1a
    uint32_t threshold_;
    float scale_;
};

}  // namespace engine
