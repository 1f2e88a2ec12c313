// The update of the parameters: one fused pass over a bucket of the flat arenas. Pure C++; knows nothing of ranks or
// layers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace engine {

// A run of floats [begin, end) in the arenas with one set of multipliers: a parameter blob, or a piece of a large one.
struct Segment {
    int64_t begin, end;
    float lr_mult, decay_mult;
    int parameter;  // the pieces of one blob have the same number, from 0
};

// What stays the same for the whole run; Caffe's names and defaults.
struct Hyper {
    float momentum = 0;        // SGD, Nesterov; AdaDelta's decay; Adam's beta1
    float momentum2 = 0.999f;  // Adam's beta2
    float delta = 1e-8f;
    float rms_decay = 0.99f;
    float weight_decay = 0;
    bool l1 = false;  // regularization_type: "L1"; else L2
    // Layer-wise rates, You et al., "Large Batch Training of Convolutional Networks": where lr_mult is above 0, it
    // becomes local_ratio |w| / (|g| + weight_decay |w|), with the norms of a parameter; 1 where one of them is 0.
    float local_ratio = 0;    // 0: off
    bool local_clip = false;  // LARC: the rate is the smaller of this and the global one, instead of their product
};

// One stretch of memory, as an update rule sees it. weights, gradients, histories: float32[count].
struct Stretch {
    float* weights;
    const float* gradients;
    float* history[2];  // as many as the rule has
    int64_t count;
};

// One step's numbers, as an update rule sees them: g = scale * gradient + l2 * w + l1 * sign(w).
struct Factors {
    float scale, l2, l1;        // AdamW takes rate * l2 * w off the weights instead
    float rate;                 // of this segment
    float momentum_correction;  // multiplies the history of SGD and Nesterov before anything else
    float adam_correction;      // sqrt(1 - beta2^t) / (1 - beta1^t)
    float momentum, momentum2, delta, rms_decay;
};

struct UpdateRule {
    const char* name;  // the solver's `type`, in lower case: "sgd"
    int histories;     // arenas of state it keeps, in the order of Caffe's SolverState.history
    void (*apply)(const Stretch& stretch, const Factors& factors);
};

const std::vector<UpdateRule>& update_rules();
// By name, upper or lower case; throws std::invalid_argument with the known names.
const UpdateRule& update_rule(const std::string& name);

class Updater {
public:
    // weights, gradients and each history are arenas with the same offsets; buckets[b] lists the segments of bucket b.
    // Throws std::invalid_argument for an unknown rule, a wrong number of histories or a segment outside [0, count).
    Updater(const std::string& rule, float* weights, float* gradients, std::vector<float*> histories, int64_t count,
            std::vector<std::vector<Segment>> buckets, const Hyper& hyper);

    // Between two steps. scale: 1 / (ranks * iter_size), the one place that averages. iteration: updates finished
    // before this one. momentum_correction: the history of SGD and Nesterov is multiplied by it (rate / the rate of the
    // step before; 1: off).
    void set_step(double rate, double scale, int64_t iteration, double momentum_correction = 1);
    // clip / norm when the norm of the gradients exceeds it, else 1; set_step makes it 1 again.
    void set_clip_factor(double factor);

    // Sum of squares of the gradients of a bucket as they are (before scale). The same bits for any number of threads.
    // Also keeps what set_local_rates() needs.
    double measure(int bucket, int threads = 1);
    // Layer-wise rates, if they are on: when every bucket is measured, after set_clip_factor(), before apply().
    void set_local_rates();
    bool has_local_rates() const { return hyper_.local_ratio > 0; }
    // Normalise, clip, decay, rule and step in one pass. Buckets are independent: servers may call this at the same
    // time. The result does not depend on `threads`, nor on the vector width of the processor.
    void apply(int bucket, int threads = 1) const;
    // The floats [begin, end) of a bucket, in the calling thread. packed: their gradients as bfloat16, which are
    // unpacked on the way, into the arena if `keep`; null: those of the arena.
    void apply_range(int bucket, int64_t begin, int64_t end, const uint16_t* packed, bool keep) const;

    int buckets() const { return int(chunks_.size()); }
    int histories() const { return rule_.histories; }

private:
    struct Chunk {  // the unit of work of a thread, within one segment
        int64_t begin, end;
        float lr_mult, decay_mult;
        int parameter;
        double gradient_squares, weight_squares;  // as measured
    };
    std::vector<Chunk>& chunks(int bucket);
    const std::vector<Chunk>& chunks(int bucket) const { return const_cast<Updater*>(this)->chunks(bucket); }
    double rate(const Chunk& chunk) const;
    Factors factors(const Chunk& chunk) const;
    void apply(const Factors& factors, int64_t begin, int64_t end, const float* gradients) const;

    const UpdateRule& rule_;
    float* weights_;
    float* gradients_;
    std::vector<float*> histories_;
    std::vector<std::vector<Chunk>> chunks_;  // by bucket
    std::vector<double> local_rates_;         // by parameter
    Hyper hyper_;
    double rate_ = 0, scale_ = 1, clip_factor_ = 1, momentum_correction_ = 1, adam_correction_ = 1;
};

}  // namespace engine
