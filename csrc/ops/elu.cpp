// Computes alpha (exp(x) - 1) where x is negative, else x.
// inputs, outputs: see activation.h; attributes: alpha.
#include "ops/common/activation.h"

namespace engine {
namespace {

class ELU : public Activation {
public:
    explicit ELU(const OpSpec& spec) : ELU(spec, spec.attributes.real("alpha")) {}

private:
    ELU(const OpSpec& spec, double alpha)
        : Activation(spec, alpha < 0 ? algorithm::eltwise_elu : algorithm::eltwise_elu_use_dst_for_bwd, alpha,
                     alpha >= 0) {}
};

static const RegisterOp<ELU> registered("ELU");

}  // namespace
}  // namespace engine
