// Chooses a kernel for products of matrices whose sums are long, as in gradients of weights over many rows.
#pragma once

#include <string>

#include "kernels/isa.h"
#include "ops/common/onednn_util.h"

namespace engine {

// Returns the primitive for result = a b. Without AMX that is oneDNN's gemm kernel, if it is offered: it packs both
// matrices, and takes up to a fifth less time than the kernel that oneDNN offers first.
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
