// Scales the rows of a parameter to length 1, in place, in each forward: w / sqrt(sum of w^2 + 1e-6). It has no inputs,
// outputs or gradient: ops after it read the scaled w.
// params: w (rows, ...).
#include <cmath>

#include "op.h"

namespace engine {
namespace {

class UnitRows : public Op {
public:
    explicit UnitRows(OpSpec spec) : Op(std::move(spec)) { plain_param(0); }

    void forward(const dnnl::stream&) override {
        const int64_t rows = param(0)->shape.at(0), size = param(0)->count() / rows;
        float* const w = param(0)->data();
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < rows; i++) {
            double sum = 1e-6;
            for (int64_t k = i * size; k < (i + 1) * size; k++) sum += double(w[k]) * double(w[k]);
            const float factor = float(1 / std::sqrt(sum));
            for (int64_t k = i * size; k < (i + 1) * size; k++) w[k] *= factor;
        }
    }
};

static const RegisterOp<UnitRows> registered("UnitRows");

}  // namespace
}  // namespace engine
