// Stochastic gradient descent with momentum.
#include "update_rule.h"

namespace engine {
namespace {

ENGINE_VECTORISED void sgd(const Arrays& arrays, const Factors& factors) {
    const Factors f = factors;  // a copy cannot alias the arrays
    const float momentum = f.constant("momentum") * f.momentum_correction;
    float *w = arrays.weights, *h = arrays.histories[0];
    const float* d = arrays.gradients;
    each(arrays, [=](int64_t i) ENGINE_BODY {
        h[i] = momentum * h[i] + f.rate * regularised(d[i], w[i], f);
        w[i] -= h[i];
    });
}

const RegisterUpdateRule registered({"SGD", "SGD", false, {"SGD's momentum"}, {{"momentum", 0, 1}}, sgd});

}  // namespace
}  // namespace engine
