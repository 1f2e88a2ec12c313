// Duchi et al., "Adaptive Subgradient Methods for Online Learning and Stochastic Optimization".
#include "update_rule.h"

namespace engine {
namespace {

ENGINE_VECTORISED void adagrad(const Arrays& arrays, const Factors& factors) {
    const Factors f = factors;  // a copy cannot alias the arrays
    const float delta = f.constant("delta");
    float *w = arrays.weights, *h = arrays.histories[0];
    const float* d = arrays.gradients;
    each(arrays, [=](int64_t i) ENGINE_BODY {
        const float g = regularised(d[i], w[i], f);
        h[i] += g * g;
        w[i] -= f.rate * (g / (std::sqrt(h[i]) + delta));
    });
}

const RegisterUpdateRule registered(
    {"AdaGrad", "AdaGrad", false, {"AdaGrad's sum of squared gradients"}, {{"delta", above_zero, INFINITY}}, adagrad});

}  // namespace
}  // namespace engine
