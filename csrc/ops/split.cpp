// Gives a blob to several readers: all tops are views of the bottom, and their gradients are summed in one pass.
// inputs: x, float32 or bf16, in any layout; outputs: x, once for each reader; attributes: kept, if x is the first
// slice of a larger blob: the top whose reader goes on filling that. The gradient of that top is x's own, to which
// those of the others are added.
#include "kernels/row_pieces.h"
#include "ops/common/elementwise.h"
#include "ops/common/parts.h"

namespace engine {
namespace {

class Split : public Op {
public:
    explicit Split(OpSpec spec) : Op(std::move(spec)), kept_(spec_.attributes.integer("kept", -1)) {
        touch(Pass::forward, input(0));
        std::vector<TensorPtr> terms;
        for (size_t i = 0; i < outputs_.size(); i++) {
            output_view(i, input(0)->layout, input(0), int64_t(i) == kept_);
            if (kept_ >= 0 && int64_t(i) != kept_ && output_gradient(i)) give_dense_gradient(*outputs_[i]);
            if (output_gradient(i)) terms.push_back(outputs_[i]->diff);
        }
        if (!input_gradient(0)) return;
        const TensorPtr& wanted = input(0)->diff;
        if (terms.size() == 1 && kept_ < 0 && !spec_.keep_all) {
            terms[0]->buffer->join(wanted->buffer);
            return;
        }
        touch(Pass::backward, wanted);
        sum_ = wanted->memory;
        for (const auto& term : terms) {
            if (term->buffer == wanted->buffer) continue;
            terms_.emplace_back(term->memory);
            memories_.push_back(term->memory);
            touch(Pass::backward, term);
            if (kept_ < 0) may_overwrite(Pass::backward, term, wanted);
        }
        if (kept_ >= 0 && !terms_.empty()) find_rows(wanted->layout, terms);
        ones_.assign(terms_.size(), 1.f);
        adds_ = true;
    }

    void forward(const dnnl::stream&) override {}

    void backward(const dnnl::stream&) override {
        if (!adds_) return;
        if (kept_ >= 0)
            input(0)->is_bf16() ? add_to_kept<bf16>() : add_to_kept<float>();
        else
            weighted_sum(terms_, ones_, sum_);
    }

private:
    void give_dense_gradient(Tensor& top) {
        const Layout& layout = input(0)->layout;
        top.diff = std::make_shared<Tensor>(spec_.name, top.shape, Home::activation);
        top.diff->decide(layout_like(layout, layout.get_dims(), layout.get_data_type()));
    }

    // Sets from_ and to_, by which add_to_kept() walks the gradients. Throws std::logic_error if it cannot.
    void find_rows(const Layout& kept, const std::vector<TensorPtr>& terms) {
        const TensorPtr& other = terms[terms[0]->buffer == input(0)->diff->buffer];
        const auto from = rows_along(other->layout, 1), to = rows_along(kept, 1);
        if (!from || !to || from->count != to->count || from->length != to->length)
            throw std::logic_error("'" + spec_.name + "' cannot add gradients laid out as " + layout_name(kept));
        from_ = *from;
        to_ = *to;
    }

    template <typename T>
    void add_to_kept() const {
        for (const memory& term : memories_)
            add_rows({address<T>(term), from_.pitch}, {address<T>(input(0)->diff), to_.pitch}, to_.length, to_.count);
    }

    int64_t kept_;
    bool adds_ = false;
    std::vector<Numbers> terms_;    // the tops' gradients, but for x's own
    std::vector<memory> memories_;  // the same
    AxisRows from_{}, to_{};
    Numbers sum_;
    std::vector<float> ones_;
};

static const RegisterOp<Split> registered("Split");

}  // namespace
}  // namespace engine
