#include "update.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <stdexcept>

#include "kernels/vectorised.h"
#include "wire.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#define ENGINE_BODY __attribute__((always_inline))

// Without contraction to FMA every vector width gives the same bits, so that ranks on different processors stay equal;
// the passes are bound by memory, it costs nothing. (GCC forgets such options inside clones when they come from a
// pragma.)
#if !defined(__NO_MATH_ERRNO__)
#error \
    "compile update.cpp with -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math: square roots vectorise only without errno"
#endif

namespace engine {
namespace {

constexpr int64_t kChunk = 16384;  // floats: 64 KB of each arena, several fit into a second-level cache
constexpr int64_t kBlock = 4096;   // floats that are unpacked and used while they are in the first-level cache
constexpr int kLanes = 8;
constexpr int64_t kLine = 16, kAhead = 512;  // floats

// Flush-to-zero and denormals-are-zero in the calling thread, for a server's thread that has no OpenMP team.
class NoDenormals {
public:
#if defined(__x86_64__)
    NoDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
    ~NoDenormals() { _mm_setcsr(before_); }

private:
    unsigned before_;
#endif
};

inline ENGINE_BODY float regularised(float gradient, float weight, const Factors& f) {
    const float sign = float(weight > 0) - float(weight < 0);
    return f.scale * gradient + f.l2 * weight + f.l1 * sign;
}

// Every float, in vectors: `element` touches those of its index only. Memory is asked for ahead, for at the end of each
// page the processor's own guesses stop, and the arenas are in no cache.
template <typename Element>
inline ENGINE_BODY void each(const Stretch& s, const Element& element) {
    const float* const arrays[] = {s.weights, s.history[0], s.history[1] ? s.history[1] : s.gradients, s.gradients};
    const int64_t count = s.count;
    int64_t i = 0;
    for (; i + kLine <= count; i += kLine) {
        for (const float* array : arrays) __builtin_prefetch(array + i + kAhead, 1);
#pragma GCC ivdep
        for (int64_t j = i; j < i + kLine; ++j) element(j);
    }
    for (; i < count; ++i) element(i);
}

ENGINE_VECTORISED void sgd(const Stretch& s, const Factors& factors) {
    const Factors f = factors;  // a copy cannot alias the arenas
    float *w = s.weights, *h = s.history[0];
    const float* d = s.gradients;
    const float momentum = f.momentum * f.momentum_correction;
    each(s, [=](int64_t i) ENGINE_BODY {
        h[i] = momentum * h[i] + f.rate * regularised(d[i], w[i], f);
        w[i] -= h[i];
    });
}

ENGINE_VECTORISED void nesterov(const Stretch& s, const Factors& factors) {
    const Factors f = factors;
    float *w = s.weights, *h = s.history[0];
    const float* d = s.gradients;
    each(s, [=](int64_t i) ENGINE_BODY {
        const float before = f.momentum_correction * h[i];
        h[i] = f.momentum * before + f.rate * regularised(d[i], w[i], f);
        w[i] -= (1 + f.momentum) * h[i] - f.momentum * before;
    });
}

ENGINE_VECTORISED void adagrad(const Stretch& s, const Factors& factors) {
    const Factors f = factors;
    float *w = s.weights, *h = s.history[0];
    const float* d = s.gradients;
    each(s, [=](int64_t i) ENGINE_BODY {
        const float g = regularised(d[i], w[i], f);
        h[i] += g * g;
        w[i] -= f.rate * (g / (std::sqrt(h[i]) + f.delta));
    });
}

ENGINE_VECTORISED void rmsprop(const Stretch& s, const Factors& factors) {
    const Factors f = factors;
    float *w = s.weights, *h = s.history[0];
    const float* d = s.gradients;
    each(s, [=](int64_t i) ENGINE_BODY {
        const float g = regularised(d[i], w[i], f);
        h[i] = f.rms_decay * h[i] + (1 - f.rms_decay) * (g * g);
        w[i] -= f.rate * (g / (std::sqrt(h[i]) + f.delta));
    });
}

ENGINE_VECTORISED void adadelta(const Stretch& s, const Factors& factors) {
    const Factors f = factors;
    float *w = s.weights, *h = s.history[0], *u = s.history[1];
    const float* d = s.gradients;
    each(s, [=](int64_t i) ENGINE_BODY {
        const float g = regularised(d[i], w[i], f);
        h[i] = f.momentum * h[i] + (1 - f.momentum) * (g * g);
        const float step = g * std::sqrt((u[i] + f.delta) / (h[i] + f.delta));
        u[i] = f.momentum * u[i] + (1 - f.momentum) * (step * step);
        w[i] -= f.rate * step;
    });
}

ENGINE_VECTORISED void adam(const Stretch& s, const Factors& factors) {
    const Factors f = factors;
    float *w = s.weights, *m = s.history[0], *v = s.history[1];
    const float* d = s.gradients;
    const float rate = f.rate * f.adam_correction;
    each(s, [=](int64_t i) ENGINE_BODY {
        const float g = regularised(d[i], w[i], f);
        m[i] = f.momentum * m[i] + (1 - f.momentum) * g;
        v[i] = f.momentum2 * v[i] + (1 - f.momentum2) * (g * g);
        w[i] -= rate * (m[i] / (std::sqrt(v[i]) + f.delta));
    });
}

// Loshchilov and Hutter, "Decoupled Weight Decay Regularization": the decay passes by the moments.
ENGINE_VECTORISED void adamw(const Stretch& s, const Factors& factors) {
    const Factors f = factors;
    float *w = s.weights, *m = s.history[0], *v = s.history[1];
    const float* d = s.gradients;
    const float rate = f.rate * f.adam_correction, decay = f.rate * f.l2;
    each(s, [=](int64_t i) ENGINE_BODY {
        const float g = f.scale * d[i];
        m[i] = f.momentum * m[i] + (1 - f.momentum) * g;
        v[i] = f.momentum2 * v[i] + (1 - f.momentum2) * (g * g);
        w[i] -= decay * w[i] + rate * (m[i] / (std::sqrt(v[i]) + f.delta));
    });
}

// In fixed lanes, so that the order of the additions is the same for every vector width.
ENGINE_VECTORISED double sum_of_squares(const float* __restrict values, int64_t count) {
    double lanes[kLanes] = {};
    const int64_t whole = count - count % kLanes;
    for (int64_t i = 0; i < whole; i += kLanes)
        for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += double(values[i + lane]) * double(values[i + lane]);
    for (int64_t i = whole; i < count; ++i) lanes[i - whole] += double(values[i]) * double(values[i]);
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

}  // namespace

const std::vector<UpdateRule>& update_rules() {
    static const std::vector<UpdateRule> rules = {
        {"sgd", 1, sgd},           {"nesterov", 1, nesterov}, {"adagrad", 1, adagrad}, {"rmsprop", 1, rmsprop},
        {"adadelta", 2, adadelta}, {"adam", 2, adam},         {"adamw", 2, adamw},
    };
    return rules;
}

const UpdateRule& update_rule(const std::string& name) {
    std::string lower = name, known;
    std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return char(std::tolower(c)); });
    for (const UpdateRule& rule : update_rules()) {
        if (lower == rule.name) return rule;
        known += (known.empty() ? "" : ", ") + std::string(rule.name);
    }
    throw std::invalid_argument("unknown update rule \"" + name + "\"; known: " + known);
}

Updater::Updater(const std::string& rule, float* weights, float* gradients, std::vector<float*> histories,
                 int64_t count, std::vector<std::vector<Segment>> buckets, const Hyper& hyper)
    : rule_(update_rule(rule)),
      weights_(weights),
      gradients_(gradients),
      histories_(std::move(histories)),
      hyper_(hyper) {
    if (int(histories_.size()) != rule_.histories)
        throw std::invalid_argument("update rule " + rule + " keeps " + std::to_string(rule_.histories) +
                                    " histories, got " + std::to_string(histories_.size()));
    for (const auto& segments : buckets) {
        chunks_.emplace_back();
        for (const Segment& segment : segments) {
            if (segment.begin < 0 || segment.end < segment.begin || segment.end > count)
                throw std::invalid_argument("segment [" + std::to_string(segment.begin) + ", " +
                                            std::to_string(segment.end) + ") in an arena of " + std::to_string(count) +
                                            " floats");
            if (segment.parameter < 0) throw std::invalid_argument("a segment's parameter: expected 0 or more");
            local_rates_.resize(std::max(local_rates_.size(), size_t(segment.parameter) + 1), 1);
            for (int64_t begin = segment.begin; begin < segment.end; begin += kChunk)
                chunks_.back().push_back({begin, std::min(begin + kChunk, segment.end), segment.lr_mult,
                                          segment.decay_mult, segment.parameter, 0, 0});
        }
    }
}

void Updater::set_step(double rate, double scale, int64_t iteration, double momentum_correction) {
    rate_ = rate;
    scale_ = scale;
    clip_factor_ = 1;
    momentum_correction_ = momentum_correction;
    const double t = double(iteration) + 1;
    const double beta1 = hyper_.momentum, beta2 = hyper_.momentum2;
    adam_correction_ = std::sqrt(1 - std::pow(beta2, t)) / (1 - std::pow(beta1, t));
}

void Updater::set_clip_factor(double factor) { clip_factor_ = factor; }

std::vector<Updater::Chunk>& Updater::chunks(int bucket) {
    if (bucket < 0 || bucket >= buckets())
        throw std::out_of_range("bucket " + std::to_string(bucket) + " of " + std::to_string(buckets()));
    return chunks_[size_t(bucket)];
}

double Updater::measure(int bucket, int threads) {
    auto& chunks = this->chunks(bucket);
    const int64_t count = int64_t(chunks.size());
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t i = 0; i < count; ++i) {
        Chunk& chunk = chunks[size_t(i)];
        chunk.gradient_squares = sum_of_squares(gradients_ + chunk.begin, chunk.end - chunk.begin);
        if (has_local_rates()) chunk.weight_squares = sum_of_squares(weights_ + chunk.begin, chunk.end - chunk.begin);
    }
    double sum = 0;
    for (const Chunk& chunk : chunks) sum += chunk.gradient_squares;
    return sum;
}

void Updater::set_local_rates() {
    if (!has_local_rates()) return;
    std::vector<double> gradients(local_rates_.size()), weights(local_rates_.size());
    for (const auto& chunks : chunks_)  // in one order, whoever measured them: the same bits on every rank
        for (const Chunk& chunk : chunks) {
            gradients[size_t(chunk.parameter)] += chunk.gradient_squares;
            weights[size_t(chunk.parameter)] += chunk.weight_squares;
        }
    for (size_t i = 0; i < local_rates_.size(); ++i) {
        const double g = std::sqrt(gradients[i]) * scale_ * clip_factor_, w = std::sqrt(weights[i]);
        const bool known = g > 0 && w > 0;
        local_rates_[i] = known ? double(hyper_.local_ratio) * w / (g + double(hyper_.weight_decay) * w) : 1;
    }
}

double Updater::rate(const Chunk& chunk) const {
    if (!has_local_rates() || chunk.lr_mult <= 0) return rate_ * double(chunk.lr_mult);
    const double local = local_rates_[size_t(chunk.parameter)];
    return hyper_.local_clip ? std::min(rate_, local) : rate_ * local;
}

Factors Updater::factors(const Chunk& chunk) const {
    const float decay = hyper_.weight_decay * chunk.decay_mult;
    Factors factors;
    factors.scale = float(scale_ * clip_factor_);
    factors.l2 = hyper_.l1 ? 0 : decay;
    factors.l1 = hyper_.l1 ? decay : 0;
    factors.rate = float(rate(chunk));
    factors.momentum_correction = float(momentum_correction_);
    factors.adam_correction = float(adam_correction_);
    factors.momentum = hyper_.momentum;
    factors.momentum2 = hyper_.momentum2;
    factors.delta = hyper_.delta;
    factors.rms_decay = hyper_.rms_decay;
    return factors;
}

void Updater::apply(const Factors& factors, int64_t begin, int64_t end, const float* gradients) const {
    Stretch stretch{weights_ + begin, gradients, {nullptr, nullptr}, end - begin};
    for (size_t i = 0; i < histories_.size(); ++i) stretch.history[i] = histories_[i] + begin;
    rule_.apply(stretch, factors);
}

void Updater::apply(int bucket, int threads) const {
    const auto& chunks = this->chunks(bucket);
    const int64_t count = int64_t(chunks.size());
    const auto whole = [this](const Chunk& c) { apply(factors(c), c.begin, c.end, gradients_ + c.begin); };
    if (threads <= 1) {  // a server: no OpenMP team of its own
        NoDenormals guard;
        for (const Chunk& chunk : chunks) whole(chunk);
        return;
    }
#pragma omp parallel num_threads(threads)
    {
        NoDenormals guard;
#pragma omp for schedule(static)
        for (int64_t i = 0; i < count; ++i) whole(chunks[size_t(i)]);
    }
}

void Updater::apply_range(int bucket, int64_t begin, int64_t end, const uint16_t* packed, bool keep) const {
    NoDenormals guard;
    float buffer[kBlock];
    for (const Chunk& chunk : this->chunks(bucket)) {
        const int64_t first = std::max(begin, chunk.begin), last = std::min(end, chunk.end);
        if (first >= last) continue;
        const Factors factors = this->factors(chunk);
        if (!packed) {
            apply(factors, first, last, gradients_ + first);
            continue;
        }
        for (int64_t at = first; at < last; at += kBlock) {
            const int64_t next = std::min(at + kBlock, last);
            float* const gradients = keep ? gradients_ + at : buffer;
            unpack_bf16(packed + (at - begin), gradients, next - at);
            apply(factors, at, next, gradients);
        }
    }
}

}  // namespace engine
