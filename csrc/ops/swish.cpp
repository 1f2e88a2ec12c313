// x / (1 + exp(-beta x)). inputs: x; attributes: beta.
#include "ops/common/activation.h"

namespace engine {
namespace {

class Swish : public Activation {
public:
    explicit Swish(const OpSpec& spec)
        : Activation(spec, algorithm::eltwise_swish, spec.attributes.real("beta"), false) {}
};

static const RegisterOp<Swish> registered("Swish");

}  // namespace
}  // namespace engine
