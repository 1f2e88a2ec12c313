// Chooses Winograd's transforms for this processor.
#include "kernels/winograd_isa.h"

#if defined(__x86_64__)
#include "kernels/isa.h"
#endif

namespace engine {

#if defined(__x86_64__)

template <>
const WinogradKernels<float>* winograd_kernels<float>(int64_t kernel) {
    if (may_use(Isa::avx512)) return avx512_winograd(kernel);
    return may_use(Isa::avx2) ? avx2_winograd(kernel) : nullptr;
}

template <>
const WinogradKernels<bf16>* winograd_kernels<bf16>(int64_t kernel) {
    return may_use(Isa::avx512) ? avx512_bf16_winograd(kernel) : nullptr;
}

#else

template <>
const WinogradKernels<float>* winograd_kernels<float>(int64_t) {
    return nullptr;
}

template <>
const WinogradKernels<bf16>* winograd_kernels<bf16>(int64_t) {
    return nullptr;
}

#endif

int64_t winograd_lanes(bool of_bf16) {
    const auto of = [](const auto* kernels) { return kernels ? kernels->lanes : 0; };
    return of_bf16 ? of(winograd_kernels<bf16>(3)) : of(winograd_kernels<float>(3));
}

}  // namespace engine
