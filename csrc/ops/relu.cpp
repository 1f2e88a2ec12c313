// Computes x where it is positive, else negative_slope x. inputs, outputs: see activation.h; attributes:
// negative_slope.
#include "ops/common/activation.h"
#include "ops/common/relu_slope.h"

namespace engine {
namespace {

// With a slope below zero, the sign of y does not tell that of x: backward then reads x.
class ReLU : public Activation {
public:
    explicit ReLU(const OpSpec& spec) : ReLU(spec, float(spec.attributes.real("negative_slope", 0))) {}

private:
    ReLU(const OpSpec& spec, float slope)
        : Activation(spec, {algorithm::eltwise_relu, relu_slope(slope)},
                     {slope < 0 ? algorithm::eltwise_relu : algorithm::eltwise_relu_use_dst_for_bwd, slope},
                     slope >= 0) {}
};

static const RegisterOp<ReLU> registered("ReLU");

}  // namespace
}  // namespace engine
