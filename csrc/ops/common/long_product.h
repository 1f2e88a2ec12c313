// Products of matrices whose sums are long, as in gradients of weights over many rows.
#pragma once

#include <string>

#include "kernels/isa.h"
#include "ops/common/onednn_util.h"

namespace engine {

// On processors without AMX oneDNN's kernel for general matrices, which packs both on its way, takes up to a fifth less
// than the one that oneDNN proposes first.
inline dnnl::matmul::primitive_desc long_product(const Layout& a, const Layout& b, const Layout& result,
                                                 const primitive_attr& attr) {
    const dnnl::matmul::primitive_desc first(cpu(), a, b, result, attr);
    if (may_use(Isa::amx)) return first;
    dnnl::matmul::primitive_desc found(cpu(), a, b, result, attr);
    do {
        if (std::string(found.impl_info_str()).find("gemm") == 0) return found;
    } while (found.next_impl());
    return first;
}

}  // namespace engine
