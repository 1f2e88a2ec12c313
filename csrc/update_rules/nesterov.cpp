// Nesterov's accelerated gradient.
#include "update_rule.h"

namespace engine {
namespace {

ENGINE_VECTORISED void nesterov(const Arrays& arrays, const Factors& factors) {
    const Factors f = factors;  // a copy cannot alias the arrays
    const float momentum = f.constant("momentum");
    float *w = arrays.weights, *h = arrays.histories[0];
    const float* d = arrays.gradients;
    each(arrays, [=](int64_t i) ENGINE_BODY {
        const float before = f.momentum_correction * h[i];
        h[i] = momentum * before + f.rate * regularised(d[i], w[i], f);
        w[i] -= (1 + momentum) * h[i] - momentum * before;
    });
}

const RegisterUpdateRule registered(
    {"Nesterov", "Nesterov", false, {"Nesterov's momentum"}, {{"momentum", 0, 1}}, nesterov});

}  // namespace
}  // namespace engine
