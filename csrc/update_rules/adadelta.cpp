// Zeiler, "AdaDelta: An Adaptive Learning Rate Method". Caffe reads its decay from `momentum`.
#include "update_rule.h"

namespace engine {
namespace {

ENGINE_VECTORISED void adadelta(const Arrays& arrays, const Factors& factors) {
    const Factors f = factors;  // a copy cannot alias the arrays
    const float decay = f.constant("momentum"), delta = f.constant("delta");
    float *w = arrays.weights, *h = arrays.histories[0], *u = arrays.histories[1];
    const float* d = arrays.gradients;
    each(arrays, [=](int64_t i) ENGINE_BODY {
        const float g = regularised(d[i], w[i], f);
        h[i] = decay * h[i] + (1 - decay) * (g * g);
        const float step = g * std::sqrt((u[i] + delta) / (h[i] + delta));
        u[i] = decay * u[i] + (1 - decay) * (step * step);
        w[i] -= f.rate * step;
    });
}

const RegisterUpdateRule registered({"AdaDelta",
                                     "AdaDelta",
                                     false,
                                     {"AdaDelta's mean of squared gradients", "AdaDelta's mean of squared updates"},
                                     {{"momentum", 0, 1}, {"delta", above_zero, INFINITY}},
                                     adadelta});

}  // namespace
}  // namespace engine
