// Functions of one number that oneDNN has not, or not with Caffe's parameters or values at the edges: Clip, Exp, Log,
// Power, ReLU6, Threshold. inputs: x, without padding unless the function keeps zeros; attributes: those of the
// function.
#include <algorithm>
#include <cmath>

#include "elementwise.h"
#include "vectorised.h"

namespace engine {

namespace {

// Each function has value(x) and slope(known), its derivative, where `known` is its result if `from_result`, else x.

struct Clip {
    static constexpr bool from_result = false;
    explicit Clip(const Attributes& a) : low(float(a.real("min"))), high(float(a.real("max"))) {}
    float value(float x) const { return x < low ? low : x > high ? high : x; }
    float slope(float x) const { return x >= low && x <= high ? 1.f : 0.f; }
    float low, high;
};

struct ReLU6 {
    static constexpr bool from_result = true;
    explicit ReLU6(const Attributes&) {}
    float value(float x) const { return x < 0 ? 0.f : x > 6 ? 6.f : x; }
    float slope(float y) const { return y > 0 && y < 6 ? 1.f : 0.f; }
};

struct Threshold {
    static constexpr bool from_result = false;
    explicit Threshold(const Attributes& a) : threshold(float(a.real("threshold"))) {}
    float value(float x) const { return x > threshold ? 1.f : 0.f; }
    float slope(float) const { return 0; }
    float threshold;
};

// factor exp(rate x)
struct Exp {
    static constexpr bool from_result = true;
    explicit Exp(const Attributes& a) : rate(float(a.real("rate"))), factor(float(a.real("factor"))) {}
    float value(float x) const { return factor * expf(rate * x); }
    float slope(float y) const { return rate * y; }
    float rate, factor;
};

// factor log(shift + scale x)
struct Log {
    static constexpr bool from_result = false;
    explicit Log(const Attributes& a)
        : scale(float(a.real("scale"))), shift(float(a.real("shift"))), factor(float(a.real("factor"))) {}
    float value(float x) const { return factor * logf(shift + scale * x); }
    float slope(float x) const { return factor * scale / (shift + scale * x); }
    float scale, shift, factor;
};

// (shift + scale x)^power
struct Power {
    static constexpr bool from_result = false;
    explicit Power(const Attributes& a)
        : power(float(a.real("power"))), scale(float(a.real("scale"))), shift(float(a.real("shift"))) {}
    float value(float x) const { return raised(shift + scale * x, power); }
    float slope(float x) const {
        return power * scale == 0 ? 0.f : power * scale * raised(shift + scale * x, power - 1);
    }
    static float raised(float x, float power) {
        return power == 0 ? 1.f : power == 1 ? x : power == 2 ? x * x : powf(x, power);
    }
    float power, scale, shift;
};

template <typename Function>
ENGINE_VECTORISED void values(Function function, const float* x, float* y, int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) y[i] = function.value(x[i]);
}

template <typename Function>
ENGINE_VECTORISED void gradients(Function function, const float* known, const float* given, float* wanted,
                                 int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) wanted[i] = given[i] * function.slope(known[i]);
}

}  // namespace

template <typename Function>
class Unary : public Op {
public:
    explicit Unary(OpSpec spec) : Op(std::move(spec)), function_(spec_.attributes) {
        x_ = input(0)->memory;
        y_ = output(0, input(0)->layout)->memory;
        touch(Pass::forward, {input(0), outputs_[0]});
        may_overwrite(Pass::forward, input(0), outputs_[0]);
        if (!input_gradient(0) || !output_gradient(0)) return;
        const TensorPtr &given = outputs_[0]->diff, &wanted = input(0)->diff;
        given_ = given->memory;
        wanted_ = wanted->memory;
        touch(Pass::backward, {Function::from_result ? outputs_[0] : input(0), given, wanted});
        may_overwrite(Pass::backward, given, wanted);
    }

    void forward(const dnnl::stream&) override {
        in_chunks(x_.count(), [this](int64_t begin, int64_t length) {
            alignas(64) float buffer[chunk_size];
            const float* const x = x_.read(begin, length, buffer);
            float* const y = y_.open(begin, buffer);
            values(function_, x, y, length);
            y_.close(begin, length, y);
        });
    }

    void backward(const dnnl::stream&) override {
        if (touched(Pass::backward).empty()) return;  // a function without a gradient
        const Numbers& from = Function::from_result ? y_ : x_;
        in_chunks(from.count(), [this, &from](int64_t begin, int64_t length) {
            alignas(64) float buffers[2][chunk_size];
            const float* const known = from.read(begin, length, buffers[0]);
            const float* const given = given_.read(begin, length, buffers[1]);
            float* const wanted = wanted_.open(begin, buffers[1]);
            gradients(function_, known, given, wanted, length);
            wanted_.close(begin, length, wanted);
        });
    }

private:
    Function function_;
    Numbers x_, y_, given_, wanted_;
};

static const RegisterOp<Unary<Clip>> clip("Clip");
static const RegisterOp<Unary<Exp>> exp("Exp");
static const RegisterOp<Unary<Log>> log("Log");
static const RegisterOp<Unary<Power>> power("Power");
static const RegisterOp<Unary<ReLU6>> relu6("ReLU6");
static const RegisterOp<Unary<Threshold>> threshold("Threshold");

}  // namespace engine
