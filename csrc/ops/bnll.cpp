// log(1 + exp(x)). inputs: x.
#include "ops/common/activation.h"

namespace engine {
namespace {

class BNLL : public Activation {
public:
    explicit BNLL(const OpSpec& spec) : Activation(spec, algorithm::eltwise_soft_relu, 1, false) {}
};

static const RegisterOp<BNLL> registered("BNLL");

}  // namespace
}  // namespace engine
