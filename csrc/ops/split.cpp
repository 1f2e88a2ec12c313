// One blob for several consumers: all tops are the bottom itself, their gradients are summed in one pass.
// inputs: x; outputs: as many as there are consumers.
#include <cstring>

#include "elementwise.h"

namespace engine {

class Split : public Op {
public:
    explicit Split(OpSpec spec) : Op(std::move(spec)) {
        touch(Pass::forward, input(0));
        for (size_t i = 0; i < outputs_.size(); i++) {
            output_view(i, input(0)->layout, input(0), false);
            if (output_gradient(i)) terms_.push_back(outputs_[i]->diff);
        }
        if (!input_gradient(0)) return;
        const TensorPtr& wanted = input(0)->diff;
        if (terms_.size() == 1) {
            terms_[0]->buffer->join(wanted->buffer);
            return;
        }
        touch(Pass::backward, wanted);
        for (const auto& term : terms_) {
            touch(Pass::backward, term);
            may_overwrite(Pass::backward, term, wanted);
        }
        given_.resize(terms_.size());
        ones_.assign(terms_.size(), 1.f);
    }

    void forward(const dnnl::stream&) override {}

    void backward(const dnnl::stream&) override {
        if (!input_gradient(0) || terms_.size() == 1) return;
        float* const wanted = input(0)->diff->data();
        const int64_t count = raw_count(input(0)->layout);
        if (terms_.empty()) {
            std::memset(wanted, 0, count * sizeof(float));
            return;
        }
        for (size_t i = 0; i < terms_.size(); i++) given_[i] = terms_[i]->data();
        weighted_sum(given_, ones_, wanted, count);
    }

private:
    std::vector<TensorPtr> terms_;  // gradients of the tops that have one
    std::vector<const float*> given_;
    std::vector<float> ones_;
};

static const RegisterOp<Split> registered("Split");

}  // namespace engine
