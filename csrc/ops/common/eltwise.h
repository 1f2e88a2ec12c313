// The base of EltwiseSum, EltwiseProduct and EltwiseMax: several blobs of one shape are brought into one layout and
// combined element by element.
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "ops/common/elementwise.h"
#include "ops/common/onednn_util.h"

namespace engine {

// inputs: two or more of one shape, float32 or bf16, in any layout; outputs: one of that shape.
class Eltwise : public Op {
public:
    explicit Eltwise(OpSpec spec) : Op(std::move(spec)), layout_(common_layout()) {
        y_ = output(0, layout_)->memory;
        count_ = y_.count();
        touch(Pass::forward, outputs_[0]);
        for (const auto& tensor : spec_.inputs) {
            x_.emplace_back(reading(tensor, layout_, forward_calls_));
            touch(Pass::forward, tensor);
            may_overwrite(Pass::forward, tensor, outputs_[0]);
        }
        fresh_scratch();
    }

protected:
    // Returns the layout of the first input that is not row-major, if there is one.
    Layout common_layout() const {
        for (const auto& tensor : spec_.inputs)
            if (!is_plain(tensor->layout)) return tensor->layout;
        return input(0)->layout;
    }

    // The gradient of input i. It is written in layout_; backward_calls_ then bring it into the input's layout.
    struct Gradient {
        size_t i;
        Numbers target;
    };
    // Makes write_gradients() write the gradient of input i.
    void want_gradient(size_t i) {
        const TensorPtr& wanted = input(i)->diff;
        const Target target = writing(wanted, layout_);
        finish(target, backward_calls_);
        gradients_.push_back({i, target.memory});
        touch(Pass::backward, {outputs_[0]->diff, wanted});
        may_overwrite(Pass::backward, outputs_[0]->diff, wanted);
    }

    // Calls write(i, given, into, begin, length) for every wanted gradient and piece of [0, count_). `given` is y's
    // gradient and `into` that of input i, both from `begin` on.
    template <typename Write>
    void write_gradients(const dnnl::stream& stream, const Write& write) {
        if (gradients_.empty()) return;
        y_.typed([&](auto type) {
            using T = decltype(type);
            const T* const given = address<T>(outputs_[0]->diff->memory);
            // The one that is written over the given gradient, if one is, comes last.
            std::partition(gradients_.begin(), gradients_.end(),
                           [&](const Gradient& gradient) { return gradient.target.as<T>() != given; });
            in_chunks(count_, [&](int64_t begin, int64_t length) {
                for (const auto& [i, target] : gradients_)
                    write(i, given + begin, target.template as<T>() + begin, begin, length);
            });
        });
        run(backward_calls_, stream);
    }

    Layout layout_;
    int64_t count_ = 0;       // elements in memory
    std::vector<Numbers> x_;  // the inputs in layout_, once forward_calls_ have run
    Numbers y_;
    std::vector<Gradient> gradients_;
};

}  // namespace engine
