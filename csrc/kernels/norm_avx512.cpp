// The kernels of BatchNorm for processors with AVX-512; those for bf16 also need its conversions (AVX512_BF16).
#include "kernels/norm_isa.h"

#if defined(__x86_64__)
#include <immintrin.h>

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")
#define ENGINE_REGISTER 16
#include "kernels/norm_kernels.h"

namespace engine {

const NormKernels<float>& avx512_kernels() { return all_kernels<float>; }
const NormKernels<bf16>& avx512_bf16_kernels() { return all_kernels<bf16>; }

}  // namespace engine
#endif
