// The few oneDNN idioms that every op repeats.
#pragma once

#include <string>

#include "kernels/isa.h"
#include "op.h"

namespace engine {

using dnnl::algorithm;
using dnnl::memory;
using dnnl::primitive_attr;
using dnnl::prop_kind;

inline Layout any_layout(const Dims& dims, memory::data_type type) {
    return Layout(dims, type, memory::format_tag::any);
}

// Scratchpads come from the program's shared scratch, so that no primitive allocates while it runs.
inline primitive_attr user_scratchpad() {
    primitive_attr attr;
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    return attr;
}

inline prop_kind forward_kind(const OpSpec& spec) {
    return spec.backward ? prop_kind::forward_training : prop_kind::forward_inference;
}

// a b where sums are long, as in gradients of weights over many rows. On processors without AMX oneDNN's kernel for
// general matrices, which packs both on its way, takes up to a fifth less than the one that oneDNN proposes first.
inline dnnl::matmul::primitive_desc long_product(const Layout& a, const Layout& b, const Layout& result,
                                                 const primitive_attr& attr) {
    const auto is_general = [](const auto& pd) { return std::string(pd.impl_info_str()).find("gemm") == 0; };
    dnnl::matmul::primitive_desc found(cpu(), a, b, result, attr);
    if (may_use(Isa::amx)) return found;
    do {
        if (is_general(found)) return found;
    } while (found.next_impl());
    return dnnl::matmul::primitive_desc(cpu(), a, b, result, attr);
}

}  // namespace engine
