// The kernels of BatchNorm for any processor, and the choice among those that there are.
#include "kernels/norm_isa.h"
#define ENGINE_REGISTER 4
#include "kernels/norm_kernels.h"

namespace engine {

#if defined(__x86_64__)

static bool has_avx512() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

template <>
const NormKernels<float>& norm_kernels<float>() {
    if (has_avx512()) return avx512_kernels();
    return __builtin_cpu_supports("avx2") ? avx2_kernels() : all_kernels<float>;
}

template <>
const NormKernels<bf16>& norm_kernels<bf16>() {
    return has_avx512() && __builtin_cpu_supports("avx512bf16") ? avx512_bf16_kernels() : all_kernels<bf16>;
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
