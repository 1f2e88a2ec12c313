// Winograd's transforms for processors with AVX2, on 8 channels at a time.
#include "kernels/winograd_isa.h"

#if defined(__x86_64__)
#pragma GCC target("avx2,fma")
#define ENGINE_LANES 8
#include "kernels/winograd_kernels.h"

namespace engine {

const WinogradKernels<float>* avx2_winograd(int64_t kernel) { return kernels_of<float>(kernel); }

}  // namespace engine
#endif
