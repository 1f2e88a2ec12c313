// What an update rule uses: the arrays and numbers that it gets, a loop over the arrays, and its registration.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "kernels/vectorised.h"

// Without contraction to FMA every vector width gives the same bits, so that ranks on different processors stay equal.
// It costs nothing, because memory limits these passes. (GCC forgets such options inside clones if a pragma sets them.)
#if !defined(__NO_MATH_ERRNO__)
#error "update rules need -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math: square roots vectorise only so"
#endif

namespace engine {

constexpr int most_histories = 4;

// The memory that a rule works on. Every array is float32[count]; there are as many histories as the rule declares.
struct Arrays {
    float* weights;
    const float* gradients;
    float* histories[most_histories];
    int64_t count;
};

// One step's numbers. The regularised gradient is scale * gradient + l2 * w + l1 * sign(w).
struct Factors {
    float scale, l2, l1;
    float rate;                 // the learning rate of these arrays
    float momentum_correction;  // the factor of a history that is a momentum, applied before anything else
    double updates;             // the number of updates so far, with this one
    const std::map<std::string, float>* constants;

    // A constant that the rule declares. Throws std::invalid_argument for any other.
    float constant(const char* name) const;
};

inline ENGINE_BODY float regularised(float gradient, float weight, const Factors& f) {
    const float sign = float(weight > 0) - float(weight < 0);
    return f.scale * gradient + f.l2 * weight + f.l1 * sign;
}

// Calls element(i) for every index, in vectors: element() may access only floats of that index. Memory is prefetched,
// because the arrays are in no cache and the processor's own prefetching stops at the end of each page.
template <typename Element>
inline ENGINE_BODY void each(const Arrays& a, const Element& element) {
    constexpr int64_t line = 16, ahead = 512;  // floats
    const float* const fetched[] = {a.weights, a.histories[0], a.histories[1] ? a.histories[1] : a.gradients,
                                    a.gradients};
    const int64_t count = a.count;
    int64_t i = 0;
    for (; i + line <= count; i += line) {
        for (const float* array : fetched) __builtin_prefetch(array + i + ahead, 1);
#pragma GCC ivdep
        for (int64_t j = i; j < i + line; ++j) element(j);
    }
    for (; i < count; ++i) element(i);
}

// A number that a rule reads: a field of SolverParameter, valid from `least` to less than `below`.
struct Constant {
    std::string field;
    double least, below;
};

// The least value of a divisor: denormals count as zero.
constexpr double above_zero = std::numeric_limits<float>::min();

// All that a rule declares. The solver, its checks, snapshots, Caffe's solver classes and messages read it here.
struct UpdateRule {
    std::string name;
    // Solver files ask for the rule by these two fields.
    std::string type;
    bool decoupled_weight_decay;
    std::vector<std::string> histories;  // what each holds, in the order of Caffe's SolverState.history
    std::vector<Constant> constants;
    void (*apply)(const Arrays& arrays, const Factors& factors);
};

// Registry: `static const RegisterUpdateRule registered({...});` in update_rules/x.cpp is all that a new rule needs.
const std::map<std::string, UpdateRule>& update_rules();

struct RegisterUpdateRule {
    // Throws std::logic_error for a name that is taken and for more than most_histories.
    explicit RegisterUpdateRule(UpdateRule rule);
};

}  // namespace engine
