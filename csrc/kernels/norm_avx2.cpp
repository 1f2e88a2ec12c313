// The kernels of BatchNorm for processors with AVX2.
#include "kernels/norm_isa.h"

#if defined(__x86_64__)
#pragma GCC target("avx2")
#define ENGINE_REGISTER 8
#include "kernels/norm_kernels.h"

namespace engine {

const NormKernels<float>& avx2_kernels() { return all_kernels<float>; }

}  // namespace engine
#endif
