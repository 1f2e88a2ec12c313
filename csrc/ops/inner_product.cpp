// Computes y = x W' + b.
// inputs: x (N, ...), float32 or bf16, K elements for each n: the layer has merged the axes before its own into N;
// outputs: y (N, O), row-major.
// params: weights (O, K), or with `transpose` (K, O); bias (O). attributes: transpose; for others, and what the graph
// may have fused, see weighted.h.
#include "kernels/sum_columns.h"
#include "ops/common/long_product.h"
#include "ops/common/parts.h"
#include "ops/common/weighted.h"

namespace engine {
namespace {

class InnerProduct : public Weighted {
public:
    explicit InnerProduct(OpSpec spec) : Weighted(std::move(spec)) {
        const Dims& out = spec_.output_shapes[0];
        if (bias_) bias_layout_ = any_layout({out[1]}, memory::data_type::f32);
        if (spec_.attributes.flag("transpose")) transpose_weights(transposed(weights_dims()));

        forward_pd forward = make_forward("forward");
        if (mixed()) {
            if (weights_learn())
                decide_weights(make_backward_weights(make_forward("weight_gradient")).diff_weights_desc());
        } else {
            if (forward.src_desc() != source_layout()) keep_source(forward);
            if (weights_learn()) keep_weights(forward);
        }
        std::optional<data_pd> data;
        if (input_gradient(0)) data = make_backward_data(mixed() ? make_forward("data_gradient") : forward);
        if (data) data_weights_ = data->weights_desc();
        add_forward<dnnl::inner_product_forward>(forward);
        close_activation();
        narrow_gradient();
        if (weights_learn()) {
            const weights_pd pd = make_backward_weights(mixed() ? make_forward("weight_gradient") : forward);
            if (has_many_rows())
                add_product_of_rows();
            else
                is_product(pd) ? add_product() : add_backward_weights<dnnl::inner_product_backward_weights>(pd);
        }
        if (data) add_backward_data<dnnl::inner_product_backward_data>(*data);
    }

private:
    using forward_pd = dnnl::inner_product_forward::primitive_desc;
    using weights_pd = dnnl::inner_product_backward_weights::primitive_desc;
    using data_pd = dnnl::inner_product_backward_data::primitive_desc;

    // Tells whether the passes compute, or write, in different precisions.
    bool mixed() const {
        const auto type = arithmetic("forward");
        return wide_ || (input_gradient(0) && arithmetic("data_gradient") != type) ||
               (weights_learn() && arithmetic("weight_gradient") != type);
    }

    // Returns x's layout, in the precision of forward.
    Layout source_layout() const {
        const Layout& given = input(0)->layout;
        const auto type = arithmetic("forward");
        return type == given.get_data_type() ? given : layout_like(given, given.get_dims(), type);
    }

    Dims weights_dims() const {
        Dims dims = input(0)->layout.get_dims();
        dims[0] = spec_.output_shapes[0][1];
        return dims;
    }

    // Makes the weights transposed ones. If their layout is still open, the kernel chooses it, and files see them as
    // `columns`. If another layer has laid them out as in files, they are read through that layout. Throws
    // std::invalid_argument if they are laid out otherwise.
    void transpose_weights(const Layout& columns) {
        const TensorPtr given = param(0);
        const auto seen = [&](const TensorPtr& tensor) {
            auto view = std::make_shared<Tensor>(*tensor);
            view->decide(columns, tensor->buffer);
            return view;
        };
        if (!given->decided()) {
            given->plain_override = columns;
            if (given->diff) given->diff->plain_override = columns;
        } else if (!given->plain_override.get_ndims()) {
            if (!is_plain(given->layout))
                throw std::invalid_argument("parameter '" + given->name + "' is laid out as " +
                                            layout_name(given->layout) + " and cannot be read transposed");
            const TensorPtr diff = given->diff ? seen(given->diff) : nullptr;
            spec_.params[0] = seen(given);
            spec_.params[0]->diff = diff;
        }
    }

    // Returns the layout of weights whose array in files is (K, O).
    static Layout transposed(const Dims& weights) {
        Dims strides(weights.size());
        int64_t stride = weights[0];
        for (size_t i = weights.size() - 1; i > 0; i--) {
            strides[i] = stride;
            stride *= weights[i];
        }
        strides[0] = 1;
        return Layout(weights, memory::data_type::f32, strides);
    }

    // Returns oneDNN's forward in the precision of a pass. Sets src_, dst_ and the other layouts, with which the
    // primitive of that pass is made.
    forward_pd make_forward(const char* pass) {
        const auto type = arithmetic(pass);
        src_ = any_layout(input(0)->layout.get_dims(), type);
        const bool widens = wide_ && pass == std::string("forward");
        dst_ = plain_layout(spec_.output_shapes[0], widens ? memory::data_type::f32 : type);
        weights_ = any_layout(weights_dims(), type);
        diff_weights_ = any_layout(weights_dims(), memory::data_type::f32);
        return make_forward();
    }

    forward_pd make_forward() const {
        const auto kind = forward_kind(spec_);
        if (bias_) return forward_pd(cpu(), kind, src_, weights_, bias_layout_, dst_, forward_attr());
        return forward_pd(cpu(), kind, src_, weights_, dst_, forward_attr());
    }

    weights_pd make_backward_weights(const forward_pd& hint) const {
        if (bias_) return weights_pd(cpu(), src_, diff_weights_, bias_layout_, dst_, hint, user_scratchpad());
        return weights_pd(cpu(), src_, diff_weights_, dst_, hint, user_scratchpad());
    }

    data_pd make_backward_data(const forward_pd& hint) const {
        return data_pd(cpu(), src_, weights_, dst_, hint, user_scratchpad());
    }

    // Tells whether the gradient of weights is computed as a product of matrices. For inner products over images in
    // bf16 oneDNN uses kernels without AMX; if weights are laid out as x is, a product takes half the time.
    bool is_product(const weights_pd& pd) const {
        const Layout &x = input(0)->layout, &w = param(0)->layout;
        if (x.get_data_type() == memory::data_type::f32 || std::string(pd.impl_info_str()).find("gemm") != 0)
            return false;
        if (!param_gradient(0) || pd.src_desc() != x || pd.diff_weights_desc() != w || w.get_inner_nblks() != 0)
            return false;
        return (!bias_ || is_plain(param(1)->layout)) && layout_like(x, w.get_dims(), memory::data_type::f32) == w;
    }

    void add_product() {
        const int64_t n = input(0)->shape[0], outputs = spec_.output_shapes[0][1], width = param(0)->count() / outputs;
        const auto type = input(0)->layout.get_data_type();
        const TensorPtr &x = input(0), &dy = gradient(), &weights = param(0)->diff;
        const Layout given({outputs, n}, type, Dims{1, outputs}), seen = plain_layout({n, width}, type),
                                                                  wanted = plain_layout({outputs, width});
        primitive_attr attr = user_scratchpad();
        if (weights->accumulate) {
            dnnl::post_ops post;
            post.append_sum(1.f);
            attr.set_post_ops(post);
        }
        const dnnl::matmul::primitive_desc pd(cpu(), given, seen, wanted, attr);
        fresh_scratch();
        backward_calls_.push_back({dnnl::matmul(pd),
                                   {{DNNL_ARG_SRC, dy->as(given)},
                                    {DNNL_ARG_WEIGHTS, x->as(seen)},
                                    {DNNL_ARG_DST, weights->as(wanted)},
                                    {DNNL_ARG_SCRATCHPAD, scratch(pd.scratchpad_desc())}}});
        touch(Pass::backward, {x, dy});
        if (bias_ && param_gradient(1)) add_bias_gradient(n, outputs);
    }

    // The gradient of the bias is the sums of the columns of dy.
    void add_bias_gradient(int64_t n, int64_t outputs) {
        const bool is_narrow = gradient()->is_bf16();
        fresh_scratch();
        add_own(backward_calls_, [n, outputs, is_narrow, dy = gradient(), diff = param(1)->diff,
                                  of_blocks = scratch(plain_layout({blocks_of(n), outputs}))] {
            const auto sum = [&](const auto* given) {
                sum_columns(given, n, outputs, address<float>(of_blocks), diff->data(), diff->accumulate);
            };
            is_narrow ? sum(address<bf16>(dy)) : sum(dy->data());
        });
    }

    // Tells whether the gradient of weights is a sum over many rows of plain memory: there a product of matrices takes
    // up to a third less time than oneDNN's inner product. (With AMX that was not measured.)
    bool has_many_rows() const {
        const auto type = input(0)->layout.get_data_type();
        return !may_use(Isa::amx) && input(0)->shape[0] >= 1024 && weights_dims().size() == 2 &&
               is_plain(input(0)->layout) && is_plain(gradient()->layout) && arithmetic("weight_gradient") == type;
    }

    void add_product_of_rows() {
        const Layout &x = input(0)->layout, dy = gradient()->layout;
        const int64_t n = x.get_dims()[0], outputs = dy.get_dims()[1];
        const Layout across({outputs, n}, dy.get_data_type(), Dims{1, outputs});
        fresh_scratch();
        const Target weights = writing_gradient(0, plain_layout(weights_dims()));
        const auto pd = long_product(across, x, plain_layout(weights_dims()), user_scratchpad());
        backward_calls_.push_back({dnnl::matmul(pd),
                                   {{DNNL_ARG_SRC, gradient()->as(across)},
                                    {DNNL_ARG_WEIGHTS, input(0)->memory},
                                    {DNNL_ARG_DST, weights.memory},
                                    {DNNL_ARG_SCRATCHPAD, scratch(pd.scratchpad_desc())}}});
        finish(weights, backward_calls_);
        touch(Pass::backward, {input(0), gradient()});
        if (bias_ && param_gradient(1)) add_bias_gradient(n, outputs);
    }

    // Gives the weights the layout of their gradient, so that neither is reordered: an inner product over images has
    // more of them than of anything else. It is not done if forward had only the reference kernel for it. In bf16
    // forward reads a copy in any case, and most kernels want it in pairs, which the gradient is not. But oneDNN's gemm
    // also takes it laid out as x. The copy then needs no transposition, which would take several times as long as the
    // product, and the gradient of x reads the same copy.
    void keep_weights(forward_pd& pd) {
        const Layout gradient = make_backward_weights(pd).diff_weights_desc();
        const Layout preferred = weights_;
        const bool is_narrow = preferred.get_data_type() != memory::data_type::f32;
        const bool is_gemm = std::string(pd.impl_info_str()).find("gemm:jit") != std::string::npos;
        const bool lies_as_x = layout_like(source_layout(), weights_dims(), memory::data_type::f32) == gradient;
        weights_ = is_narrow ? layout_like(gradient, gradient.get_dims(), preferred.get_data_type()) : gradient;
        const bool same = !is_narrow || gradient.get_inner_nblks() == 0 || (is_gemm && lies_as_x);
        try {
            const forward_pd kept = make_forward();
            if (same && std::string(kept.impl_info_str()).find("ref") == std::string::npos) {
                pd = kept;
                decide_weights(gradient);
                return;
            }
        } catch (const dnnl::error&) {
            // No kernel takes this layout: weights are reordered instead.
        }
        weights_ = preferred;
        if (is_narrow) decide_weights(gradient);
    }

    // Makes forward read x in its own layout, which costs nothing, because weights can follow it, unless forward had
    // only the reference kernel for it.
    void keep_source(forward_pd& pd) {
        const Layout preferred = src_;
        src_ = source_layout();
        try {
            const forward_pd kept = make_forward();
            if (std::string(kept.impl_info_str()).find("ref") == std::string::npos) {
                pd = kept;
                return;
            }
        } catch (const dnnl::error&) {
            // No kernel takes this layout: x is reordered instead.
        }
        src_ = preferred;
    }
};

static const RegisterOp<InnerProduct> registered("InnerProduct");

}  // namespace
}  // namespace engine
