#include "op.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>

#include "kernels/packed_weights.h"

namespace engine {

using dnnl::memory;

template <typename T>
static const T& lookup(const Attributes& attributes, const std::string& key) {
    const auto found = attributes.values.find(key);
    if (found == attributes.values.end()) throw std::invalid_argument("attribute '" + key + "' is missing");
    const T* value = std::get_if<T>(&found->second);
    if (!value) throw std::invalid_argument("attribute '" + key + "' has another type");
    return *value;
}

int64_t Attributes::integer(const std::string& key) const { return lookup<int64_t>(*this, key); }
double Attributes::real(const std::string& key) const {
    const auto found = values.find(key);
    if (found != values.end() && std::holds_alternative<int64_t>(found->second)) return double(integer(key));
    return lookup<double>(*this, key);
}
std::string Attributes::text(const std::string& key) const { return lookup<std::string>(*this, key); }
Dims Attributes::integers(const std::string& key) const { return lookup<std::vector<int64_t>>(*this, key); }
std::vector<double> Attributes::reals(const std::string& key) const { return lookup<std::vector<double>>(*this, key); }
const Attributes::Callback& Attributes::callback(const std::string& key) const { return lookup<Callback>(*this, key); }

static std::map<std::string, OpMaker>& registry() {
    static std::map<std::string, OpMaker> makers;
    return makers;
}

void register_op(const char* type, OpMaker make) { registry()[type] = make; }

OpMaker find_op(const std::string& type) {
    const auto found = registry().find(type);
    if (found == registry().end()) throw std::invalid_argument("no op of type '" + type + "' in the extension");
    return found->second;
}

OpSpec::OpSpec() = default;
OpSpec::OpSpec(const OpSpec&) = default;
OpSpec::OpSpec(OpSpec&&) noexcept = default;
OpSpec::~OpSpec() = default;

bool OpSpec::leads_to_loss() const {
    const bool receives = std::find(output_gradients.begin(), output_gradients.end(), true) != output_gradients.end();
    return receives || (attributes.has("loss_weight") && attributes.real("loss_weight") != 0);
}

Op::Op(OpSpec spec) : spec_(std::move(spec)), outputs_(spec_.output_shapes.size()) {}
Op::~Op() = default;

bool Op::param_gradient(size_t i) const {
    return spec_.backward && spec_.leads_to_loss() && i < spec_.params.size() && spec_.params[i]->diff;
}

void Op::make_loss() {
    loss_weight_ = spec_.attributes.real("loss_weight");
    touch(Pass::forward, output(0, plain_layout({})));
    if (output_gradient(0)) touch(Pass::backward, outputs_[0]->diff);
}

double Op::loss_gradient() const {
    return loss_weight_ + (output_gradient(0) ? double(outputs_[0]->diff->data()[0]) : 0.);
}

bool Op::needs_backward() const {
    for (size_t i = 0; i < spec_.inputs.size(); i++)
        if (input_gradient(i)) return true;
    for (size_t i = 0; i < spec_.params.size(); i++)
        if (param_gradient(i)) return true;
    return false;
}

void Op::place_scratch(char* base) const {
    for (auto [memory, offset] : scratch_) memory.set_data_handle(base + offset);
}

void Op::add_own(Calls& calls, std::function<void()> own) { calls.push_back({{}, {}, std::move(own)}); }

void Op::run(const Calls& calls, const dnnl::stream& stream) {
    for (const auto& call : calls) {
        const auto begin = std::chrono::steady_clock::now();
        call.own ? call.own() : execute(call, stream);
        call.nanoseconds = (std::chrono::steady_clock::now() - begin).count();
    }
}

void Op::execute(const Call& call, const dnnl::stream& stream) {
    // Does what primitive::execute() does, which would build this list each time.
    if (call.list.empty())
        for (const auto& [which, memory] : call.args) call.list.push_back({which, memory.get(true)});
    const auto status =
        dnnl_primitive_execute(call.primitive.get(), stream.get(), int(call.list.size()), call.list.data());
    dnnl::error::wrap_c_api(status, "could not execute a primitive");
}

std::vector<Op::Reorder> Op::reorders() const {
    std::vector<Reorder> result;
    for (const Pass pass : {Pass::forward, Pass::backward})
        for (const auto& call : pass == Pass::forward ? forward_calls_ : backward_calls_)
            if (call.own ? !call.args.empty() : call.primitive.get_kind() == dnnl::primitive::kind::reorder)
                result.push_back({pass, call.args.at(DNNL_ARG_FROM).get_desc(), call.args.at(DNNL_ARG_TO).get_desc(),
                                  call.nanoseconds});
    return result;
}

TensorPtr Op::output(size_t i, const Layout& layout) {
    auto tensor = std::make_shared<Tensor>(spec_.name, spec_.output_shapes.at(i), Home::activation);
    if (output_gradient(i)) tensor->diff = std::make_shared<Tensor>(spec_.name, tensor->shape, Home::activation);
    tensor->decide(layout);
    return outputs_[i] = tensor;
}

TensorPtr Op::output_view(size_t i, const Layout& layout, const TensorPtr& of, bool share_diff) {
    auto tensor = std::make_shared<Tensor>(spec_.name, spec_.output_shapes.at(i), of->home);
    tensor->decide(layout, of->buffer);
    if (output_gradient(i)) {
        tensor->diff = std::make_shared<Tensor>(spec_.name, tensor->shape, Home::activation);
        if (share_diff && of->diff)
            tensor->diff->decide(layout, of->diff->buffer);
        else
            tensor->diff->decide(layout);
    }
    return outputs_[i] = tensor;
}

TensorPtr Op::workspace(const std::string& what, const Layout& layout) {
    auto tensor = std::make_shared<Tensor>(spec_.name + "." + what, layout.get_dims(), Home::activation);
    tensor->decide(layout);
    return tensor;
}

void Op::touch(Pass pass, const TensorPtr& tensor) { touched_[int(pass)].push_back(tensor->buffer); }

void Op::touch(Pass pass, std::initializer_list<TensorPtr> tensors) {
    for (const auto& tensor : tensors) touch(pass, tensor);
}

void Op::may_overwrite(Pass pass, const TensorPtr& input, const TensorPtr& output) {
    overwrites_.push_back({pass, input->buffer, output->buffer});
}

memory Op::scratch(const Layout& layout) {
    memory piece(layout, cpu(), DNNL_MEMORY_NONE);
    scratch_.emplace_back(piece, scratch_used_);
    scratch_used_ += (layout.get_size() + 63) / 64 * 64;
    scratch_peak_ = std::max(scratch_peak_, scratch_used_);
    return piece;
}

memory Op::reading(const TensorPtr& tensor, const Layout& wanted, Calls& calls) {
    return reading(tensor, tensor->layout, wanted, calls);
}

memory Op::reading(const TensorPtr& tensor, const Layout& described, const Layout& wanted, Calls& calls) {
    memory source = described == tensor->layout ? tensor->memory : tensor->as(described);
    if (described == wanted) return source;
    memory target = scratch(wanted);
    calls.push_back(reorder(source, target));
    return target;
}

// Returns our own kernel for a change of layout, if there is one.
static std::optional<PackedWeights> packed_weights(const Layout& from, const Layout& to) {
    constexpr auto blocked = memory::format_kind::blocked;
    if (from.get_data_type() != memory::data_type::f32 || to.get_data_type() != memory::data_type::bf16) return {};
    if (from.get_format_kind() != blocked || to.get_format_kind() != blocked) return {};
    const Dims dims = to.get_dims();
    if (from.get_dims() != dims || from.get_padded_dims() != dims || to.get_padded_dims() != dims) return {};
    return PackedWeights::of(dims, {from.get_strides(), from.get_inner_blks(), from.get_inner_idxs()},
                             {to.get_strides(), to.get_inner_blks(), to.get_inner_idxs()});
}

Op::Call Op::reorder(const memory& from, const memory& to) {
    Call call{{}, {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}}};
    if (const auto packed = packed_weights(from.get_desc(), to.get_desc()))
        call.own = [packed = *packed, from, to] { packed.pack(address<float>(from), address<uint16_t>(to)); };
    else
        call.primitive = dnnl::reorder(from, to);
    return call;
}

Op::Target Op::writing(const TensorPtr& tensor, const Layout& described, const Layout& wanted, bool add) {
    memory final = described == tensor->layout ? tensor->memory : tensor->as(described);
    if (described == wanted && !add) return {final, memory(), false};
    return {scratch(wanted), final, add};
}

[[noreturn]] static void throw_other_shape(const TensorPtr& param, const std::string& op) {
    throw std::invalid_argument("parameter '" + param->name + "' is laid out as " + layout_name(param->layout) +
                                " and cannot be shared with '" + op + "', which sees another shape");
}

// Returns the layout of a parameter, with the dims of `wanted`. Two layers may describe one parameter with different
// dims (a shared blob, an inner product over images): that works while it is row-major, where only the count matters.
// Throws std::invalid_argument if it is not.
static Layout described_as(const TensorPtr& param, const Layout& wanted, const std::string& op) {
    if (param->layout.get_dims() == wanted.get_dims()) return param->layout;
    if (!is_plain(param->layout)) throw_other_shape(param, op);
    return plain_layout(wanted.get_dims());
}

memory Op::described_param(size_t i, const Layout& wanted) {
    const bool float32 = wanted.get_data_type() == memory::data_type::f32;
    if (!param(i)->decided()) param(i)->decide(float32 ? wanted : plain_layout(wanted.get_dims()));
    const Layout described = described_as(param(i), wanted, spec_.name);
    return described == param(i)->layout ? param(i)->memory : param(i)->as(described);
}

memory Op::reading_param(size_t i, const Layout& wanted, Calls& calls) {
    return reading(param(i), described_param(i, wanted).get_desc(), wanted, calls);
}

void Op::plain_param(size_t i) {
    if (!param(i)->decided()) param(i)->decide(plain_layout(param(i)->shape));
    if (!is_plain(param(i)->layout)) throw_other_shape(param(i), spec_.name);
}

Op::Target Op::writing_gradient(size_t i, const Layout& wanted) {
    if (!param_gradient(i)) return {scratch(wanted), memory(), false};
    const auto& diff = param(i)->diff;
    return writing(diff, described_as(diff, wanted, spec_.name), wanted, diff->accumulate);
}

void Op::finish(const Target& target, Calls& calls) {
    if (!target.final) return;
    dnnl::primitive_attr attr;
    dnnl::post_ops post;
    if (target.add) post.append_sum(1.f);
    attr.set_post_ops(post);
    dnnl::reorder::primitive_desc pd(cpu(), target.memory.get_desc(), cpu(), target.final.get_desc(), attr);
    calls.push_back({dnnl::reorder(pd), {{DNNL_ARG_FROM, target.memory}, {DNNL_ARG_TO, target.final}}});
}

}  // namespace engine
