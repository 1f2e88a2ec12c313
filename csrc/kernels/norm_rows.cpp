// The kernels of BatchNorm for any processor, and the choice of those for this one.
#include "kernels/isa.h"
#include "kernels/norm_isa.h"
#define ENGINE_REGISTER 4
#include "kernels/norm_kernels.h"

namespace engine {

#if defined(__x86_64__)

template <>
const NormKernels<float>& norm_kernels<float>() {
    if (may_use(Isa::avx512)) return avx512_kernels();
    return may_use(Isa::avx2) ? avx2_kernels() : all_kernels<float>;
}

template <>
const NormKernels<bf16>& norm_kernels<bf16>() {
    return may_use(Isa::avx512_bf16) ? avx512_bf16_kernels() : all_kernels<bf16>;
}

#else

template <>
const NormKernels<float>& norm_kernels<float>() {
    return all_kernels<float>;
}

template <>
const NormKernels<bf16>& norm_kernels<bf16>() {
    return all_kernels<bf16>;
}

#endif

}  // namespace engine
