// Computes |x|. inputs, outputs: see activation.h.
#include "ops/common/activation.h"

namespace engine {
namespace {

class AbsVal : public Activation {
public:
    explicit AbsVal(const OpSpec& spec) : Activation(spec, algorithm::eltwise_abs, 0, false) {}
};

static const RegisterOp<AbsVal> registered("AbsVal");

}  // namespace
}  // namespace engine
