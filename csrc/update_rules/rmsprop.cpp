// Tieleman and Hinton, "RMSProp: Divide the Gradient by a Running Average of Its Recent Magnitude".
#include "update_rule.h"

namespace engine {
namespace {

ENGINE_VECTORISED void rmsprop(const Arrays& arrays, const Factors& factors) {
    const Factors f = factors;  // a copy cannot alias the arrays
    const float decay = f.constant("rms_decay"), delta = f.constant("delta");
    float *w = arrays.weights, *h = arrays.histories[0];
    const float* d = arrays.gradients;
    each(arrays, [=](int64_t i) ENGINE_BODY {
        const float g = regularised(d[i], w[i], f);
        h[i] = decay * h[i] + (1 - decay) * (g * g);
        w[i] -= f.rate * (g / (std::sqrt(h[i]) + delta));
    });
}

const RegisterUpdateRule registered({"RMSProp",
                                     "RMSProp",
                                     false,
                                     {"RMSProp's mean of squared gradients"},
                                     {{"rms_decay", 0, 1}, {"delta", above_zero, INFINITY}},
                                     rmsprop});

}  // namespace
}  // namespace engine
