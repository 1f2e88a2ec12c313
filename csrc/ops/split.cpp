// One blob for several consumers: all tops are the bottom itself, their gradients are summed in one pass.
// inputs: x; outputs: as many as there are consumers.
#include "ops/common/elementwise.h"

namespace engine {
namespace {

class Split : public Op {
public:
    explicit Split(OpSpec spec) : Op(std::move(spec)) {
        touch(Pass::forward, input(0));
        std::vector<TensorPtr> terms;
        for (size_t i = 0; i < outputs_.size(); i++) {
            output_view(i, input(0)->layout, input(0), false);
            if (output_gradient(i)) terms.push_back(outputs_[i]->diff);
        }
        if (!input_gradient(0)) return;
        const TensorPtr& wanted = input(0)->diff;
        if (terms.size() == 1) {
            terms[0]->buffer->join(wanted->buffer);
            return;
        }
        touch(Pass::backward, wanted);
        sum_ = wanted->memory;
        for (const auto& term : terms) {
            terms_.emplace_back(term->memory);
            touch(Pass::backward, term);
            may_overwrite(Pass::backward, term, wanted);
        }
        ones_.assign(terms_.size(), 1.f);
        adds_ = true;
    }

    void forward(const dnnl::stream&) override {}

    void backward(const dnnl::stream&) override {
        if (!adds_) return;
        if (terms_.empty())
            sum_.clear();
        else
            weighted_sum(terms_, ones_, sum_, sum_.count());
    }

private:
    bool adds_ = false;
    std::vector<Numbers> terms_;  // gradients of the tops that have one
    Numbers sum_;
    std::vector<float> ones_;
};

static const RegisterOp<Split> registered("Split");

}  // namespace
}  // namespace engine
