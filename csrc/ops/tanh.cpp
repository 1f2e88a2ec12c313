// The hyperbolic tangent. inputs: x.
#include "ops/common/activation.h"

namespace engine {
namespace {

class TanH : public Activation {
public:
    explicit TanH(OpSpec spec) : Activation(std::move(spec), algorithm::eltwise_tanh_use_dst_for_bwd) {}
};

static const RegisterOp<TanH> registered("TanH");

}  // namespace
}  // namespace engine
