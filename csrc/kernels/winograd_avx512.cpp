// Winograd's transforms for processors with AVX-512, on 16 channels at a time.
#include "kernels/winograd_isa.h"

#if defined(__x86_64__)
#include <immintrin.h>

#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl")
#define ENGINE_LANES 16
#include "kernels/winograd_kernels.h"

namespace engine {

const WinogradKernels<float>* avx512_winograd(int64_t kernel) { return kernels_of<float>(kernel); }
const WinogradKernels<bf16>* avx512_bf16_winograd(int64_t kernel) { return kernels_of<bf16>(kernel); }

}  // namespace engine
#endif
