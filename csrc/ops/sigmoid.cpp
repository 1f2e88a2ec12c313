// 1 / (1 + exp(-x)). inputs: x.
#include "ops/common/activation.h"

namespace engine {
namespace {

class Sigmoid : public Activation {
public:
    explicit Sigmoid(OpSpec spec) : Activation(std::move(spec), algorithm::eltwise_logistic_use_dst_for_bwd) {}
};

static const RegisterOp<Sigmoid> registered("Sigmoid");

}  // namespace
}  // namespace engine
