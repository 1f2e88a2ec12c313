// Sets each element to zero with probability `ratio` and scales the others by 1 / (1 - ratio); with ratio 0 (at test
// time) does nothing. inputs: x (N, ...); attributes: ratio. Which elements survive is a function of the seed, the
// layer's name, the step, the sample's place in the global batch and the element's place in the sample: the same on
// however many ranks, and for backward there is no mask to store.
#include <stdexcept>

#include "channel_rows.h"
#include "vectorised.h"

namespace engine {

namespace {

// Steele, Lea and Flood's splitmix64: neighbouring numbers become unrelated ones.
uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

// FNV-1a.
uint64_t hash(const std::string& name) {
    uint64_t value = 0xcbf29ce484222325u;
    for (const unsigned char letter : name) value = (value ^ letter) * 0x100000001b3u;
    return value;
}

// The same idea in 32 bits, which vectorise (constants: Wellons' lowbias32).
inline __attribute__((always_inline)) uint32_t mix32(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

struct Mask {
    uint32_t low, high;  // of the sample's key
    uint32_t threshold;
    float scale;
    float at(uint32_t element) const __attribute__((always_inline)) {
        return mix32(mix32(element + low) ^ high) >= threshold ? scale : 0.f;
    }
};

// `rows` rows of `lanes` elements, `step` apart in memory; neighbours in a row are `stride` elements apart in the
// sample, rows one.
ENGINE_VECTORISED void drop(const Mask& mask, const float* x, float* y, int64_t rows, int64_t step, int64_t lanes,
                            uint32_t first, uint32_t stride) {
    const Mask local = mask;
    for (int64_t row = 0; row < rows; row++, x += step, y += step, first++) {
#pragma omp simd
        for (int64_t lane = 0; lane < lanes; lane++) y[lane] = x[lane] * local.at(first + uint32_t(lane) * stride);
    }
}

}  // namespace

class Dropout : public Op {
public:
    explicit Dropout(OpSpec spec) : Op(std::move(spec)), name_hash_(hash(spec_.name)) {
        const TensorPtr& x = input(0);
        const double ratio = spec_.attributes.real("ratio");
        touch(Pass::forward, x);
        if (ratio == 0) {
            output_view(0, x->layout, x, true);
            if (input_gradient(0)) touch(Pass::backward, x->diff);
            return;
        }
        const auto rows = ChannelRows::of(x->layout);
        if (!rows) throw std::invalid_argument("no kernel for a blob laid out as " + layout_name(x->layout));
        rows_ = *rows;
        threshold_ = uint32_t(ratio * 4294967296.0);
        scale_ = float(1 / (1 - ratio));
        touch(Pass::forward, output(0, x->layout));
        may_overwrite(Pass::forward, x, outputs_[0]);
        if (!input_gradient(0) || !output_gradient(0)) return;
        touch(Pass::backward, {outputs_[0]->diff, x->diff});
        may_overwrite(Pass::backward, outputs_[0]->diff, x->diff);
    }

    void forward(const dnnl::stream&) override {
        if (scale_ > 0) apply(input(0), outputs_[0]);
    }
    void backward(const dnnl::stream&) override {
        if (scale_ > 0) apply(outputs_[0]->diff, input(0)->diff);
    }

private:
    void apply(const TensorPtr& from, const TensorPtr& to) const {
        const Counter& counter = *spec_.counter;
        const uint64_t layer_and_step = mix(mix(counter.seed ^ name_hash_) + counter.step);
        const float* const x = from->data();
        float* const y = to->data();
        const int64_t blocks = rows_.blocks();
#pragma omp parallel for schedule(static) if (!rows_.small())
        for (int64_t panel = 0; panel < rows_.panels(); panel++) {
            const int64_t n = panel / blocks, block = panel % blocks, at = rows_.offset(n, block);
            const uint64_t key = mix(layer_and_step + counter.first_sample + uint64_t(n));
            const Mask mask{uint32_t(key), uint32_t(key >> 32), threshold_, scale_};
            const uint32_t first = uint32_t(block * rows_.lanes * rows_.inner);
            if (rows_.lanes == 1)
                drop(mask, x + at, y + at, 1, 0, rows_.inner, first, 1);
            else
                drop(mask, x + at, y + at, rows_.inner, rows_.inner_stride, rows_.lanes, first, uint32_t(rows_.inner));
        }
    }

    uint64_t name_hash_;
    ChannelRows rows_{};
    uint32_t threshold_ = 0;
    float scale_ = 0;  // stays 0 where the layer does nothing
};

static const RegisterOp<Dropout> registered("Dropout");

}  // namespace engine
