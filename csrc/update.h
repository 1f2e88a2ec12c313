// The update of the parameters: one fused pass over a bucket of the flat arenas. It is pure C++ and knows nothing of
// ranks or layers.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "update_rule.h"

namespace engine {

// Floats [begin, end) of the gradients that belong to one parameter: the whole of it, or some of a large one. An update
// clamps its values to [least, most].
struct ParameterRange {
    int64_t begin, end;
    float lr_mult, decay_mult;
    int parameter;  // its number, from 0
    float least = -std::numeric_limits<float>::infinity(), most = std::numeric_limits<float>::infinity();
    // What to add to an index of the gradients for that of the weights, and of the histories: a rank may hold only its
    // own share of these.
    int64_t weights_shift = 0, history_shift = 0;
};

// An arena of floats.
struct FloatArena {
    float* data;
    int64_t count;
};

struct WeightDecay {
    float factor = 0;
    bool l1 = false;  // regularization_type: "L1"; else L2
};

// Layer-wise rates, You et al., "Large Batch Training of Convolutional Networks": for a parameter whose lr_mult is
// above 0, ratio |w| / (|g| + weight_decay |w|) takes the place of lr_mult. |w| and |g| are the norms of the parameter
// and of its gradient; if one of them is 0, 1 takes that place.
struct LocalRates {
    float ratio = 0;     // 0: off
    bool clip = false;   // whether, as in LARC, the rate is the smaller of this and the global one, not their product
    bool decays = true;  // whether weight_decay |w| is in the formula; NVIDIA's LARC leaves it out
    bool decayed_only = false;  // whether parameters without weight decay (decay_mult 0) keep their lr_mult
};

class Updater {
public:
    // weights, gradients and each history are arenas with the same offsets, but for the shifts of a range. buckets[b]
    // lists the ranges of bucket b. constants: a value for each constant that the rule declares. Throws
    // std::invalid_argument for an unknown rule, for histories or constants that are not the rule's, and for a range
    // outside of an arena.
    Updater(const std::string& rule, FloatArena weights, FloatArena gradients, const std::vector<FloatArena>& histories,
            const std::vector<std::vector<ParameterRange>>& buckets, std::map<std::string, float> constants,
            WeightDecay weight_decay, LocalRates local_rates);

    // The setters are for the time between two steps, and hold for the steps that follow.

    // Sets the numbers of the next step. scale: 1 / (ranks * iter_size), the one place that averages. iteration:
    // updates finished before this one. momentum_correction: the factor of a history that is a momentum: the rate
    // divided by that of the step before, or 1.
    void set_step(double rate, double scale, int64_t iteration, double momentum_correction = 1);
    void set_weight_decay(float factor);
    // Sets a constant that the rule declares. Throws std::invalid_argument for others.
    void set_constant(const std::string& field, float value);
    void set_local_ratio(float ratio) { local_.ratio = ratio; }
    // factor: clip / norm if the norm of the gradients is larger than clip, else 1. set_step() sets it to 1.
    void set_clip_factor(double factor);

    // Returns the sum of squares of a bucket's gradients as they are (before scale), the same bits for any number of
    // threads. Keeps what squares() needs.
    double measure(int bucket, int threads = 1);
    // Returns the sums of squares of each parameter's gradients, then of each parameter's weights, when every bucket is
    // measured; nothing if layer-wise rates are off.
    std::vector<double> squares() const;
    // Sets the layer-wise rates, after set_clip_factor() and before apply(). squares: those of squares(), summed over
    // the ranks if each has shares of the parameters. Throws std::invalid_argument if there are more or fewer.
    void set_local_rates(const std::vector<double>& squares);
    bool has_local_rates() const { return local_.ratio > 0; }
    // Normalises, clips, decays and updates a bucket in one pass. Buckets are independent: servers may call this at the
    // same time. The result does not depend on `threads`, nor on the vector width of the processor.
    void apply(int bucket, int threads = 1) const;
    // Updates the floats [begin, end) of a bucket in the calling thread. packed: their gradients as bfloat16, which are
    // unpacked, into the arena if `keep`; null: the gradients are in the arena.
    void apply_range(int bucket, int64_t begin, int64_t end, const uint16_t* packed, bool keep) const;

    // Updates as apply_range() does, by gradients that came from the ranks as rows of bfloat16 and are not summed yet
    // (wire.h). Row r, at rows + r * stride, holds those of [begin, end); row `own` is in the arena instead, which gets
    // the sums if `keep`. packed: receives the new weights as bfloat16, and 0 in gaps between parameters.
    void apply_rows(int bucket, int64_t begin, int64_t end, const uint16_t* rows, int64_t row_count, int64_t stride,
                    int64_t own, uint16_t* packed, bool keep) const;

    int buckets() const { return int(tasks_.size()); }
    int histories() const { return int(histories_.size()); }

private:
    // Some of a range, which a thread does at a time, with the sums of squares that measure() found in it.
    struct Task : ParameterRange {
        double gradient_squares = 0, weight_squares = 0;
    };
    std::vector<Task>& tasks(int bucket);
    const std::vector<Task>& tasks(int bucket) const { return const_cast<Updater*>(this)->tasks(bucket); }
    void check_constants() const;
    double rate(const ParameterRange& range) const;
    Factors factors(const ParameterRange& range) const;
    // Updates the floats [begin, end) of a range.
    void apply(const ParameterRange& range, const Factors& factors, int64_t begin, int64_t end,
               const float* gradients) const;

    const UpdateRule& rule_;
    float* weights_;
    float* gradients_;
    std::vector<float*> histories_;
    std::vector<std::vector<Task>> tasks_;  // by bucket
    std::map<std::string, float> constants_;
    WeightDecay decay_;
    LocalRates local_;
    std::vector<double> local_rates_;  // by parameter
    double rate_ = 0, scale_ = 1, clip_factor_ = 1, momentum_correction_ = 1, updates_ = 1;
};

}  // namespace engine
