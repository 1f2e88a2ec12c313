// The few oneDNN idioms that every op repeats.
#pragma once

#include <string_view>

#include "op.h"

namespace engine {

using dnnl::algorithm;
using dnnl::memory;
using dnnl::primitive_attr;
using dnnl::prop_kind;

inline Layout any_layout(const Dims& dims, memory::data_type type) {
    return Layout(dims, type, memory::format_tag::any);
}

// Returns attributes with which a primitive takes its scratchpad from the program's scratch, and allocates nothing
// while it runs.
inline primitive_attr user_scratchpad() {
    primitive_attr attr;
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    return attr;
}

inline prop_kind forward_kind(const OpSpec& spec) {
    return spec.backward ? prop_kind::forward_training : prop_kind::forward_inference;
}

// Returns the primitive descriptor of make(), for the gradient of a convolution's source. If the convolution is
// depthwise, it is one of a depthwise kernel: for strided ones in bf16 oneDNN first offers a kernel for matrices, in
// which each channel takes 16 lanes.
template <typename Make>
auto depthwise_first(bool is_depthwise, const Make& make) -> decltype(make()) {
    auto pd = make();
    if (!is_depthwise) return pd;
    while (std::string_view(pd.impl_info_str()).substr(0, 6) != "jit_dw")
        if (!pd.next_impl()) return make();
    return pd;
}

}  // namespace engine
