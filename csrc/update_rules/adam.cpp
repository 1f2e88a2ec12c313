// Kingma and Ba, "Adam: A Method for Stochastic Optimization", and AdamW, Loshchilov and Hutter, "Decoupled Weight
// Decay Regularization", whose weight decay does not enter the moments.
#include "update_rule.h"

namespace engine {
namespace {

// Returns the factor that makes up for moments that begin at 0: sqrt(1 - beta2^t) / (1 - beta1^t).
float bias_correction(const Factors& f) {
    const double beta1 = f.constant("momentum"), beta2 = f.constant("momentum2");
    return float(std::sqrt(1 - std::pow(beta2, f.updates)) / (1 - std::pow(beta1, f.updates)));
}

ENGINE_VECTORISED void adam(const Arrays& arrays, const Factors& factors) {
    const Factors f = factors;  // a copy cannot alias the arrays
    const float beta1 = f.constant("momentum"), beta2 = f.constant("momentum2"), delta = f.constant("delta");
    const float rate = f.rate * bias_correction(f);
    float *w = arrays.weights, *m = arrays.histories[0], *v = arrays.histories[1];
    const float* d = arrays.gradients;
    each(arrays, [=](int64_t i) ENGINE_BODY {
        const float g = regularised(d[i], w[i], f);
        m[i] = beta1 * m[i] + (1 - beta1) * g;
        v[i] = beta2 * v[i] + (1 - beta2) * (g * g);
        w[i] -= rate * (m[i] / (std::sqrt(v[i]) + delta));
    });
}

ENGINE_VECTORISED void adamw(const Arrays& arrays, const Factors& factors) {
    const Factors f = factors;
    const float beta1 = f.constant("momentum"), beta2 = f.constant("momentum2"), delta = f.constant("delta");
    const float rate = f.rate * bias_correction(f), decay = f.rate * f.l2;
    float *w = arrays.weights, *m = arrays.histories[0], *v = arrays.histories[1];
    const float* d = arrays.gradients;
    each(arrays, [=](int64_t i) ENGINE_BODY {
        const float g = f.scale * d[i];
        m[i] = beta1 * m[i] + (1 - beta1) * g;
        v[i] = beta2 * v[i] + (1 - beta2) * (g * g);
        w[i] -= decay * w[i] + rate * (m[i] / (std::sqrt(v[i]) + delta));
    });
}

const std::vector<Constant> constants = {{"momentum", 0, 1}, {"momentum2", 0, 1}, {"delta", above_zero, INFINITY}};
const RegisterUpdateRule registered_adam(
    {"Adam", "Adam", false, {"Adam's first moment", "Adam's second moment"}, constants, adam});
const RegisterUpdateRule registered_adamw(
    {"AdamW", "Adam", true, {"AdamW's first moment", "AdamW's second moment"}, constants, adamw});

}  // namespace
}  // namespace engine
