// Declares Winograd's transforms for each instruction set.
#pragma once

#include "kernels/winograd.h"

namespace engine {

// Return the transforms for kernels of 3 or 5 pixels; null for others.
const WinogradKernels<float>* avx2_winograd(int64_t kernel);
const WinogradKernels<float>* avx512_winograd(int64_t kernel);
const WinogradKernels<bf16>* avx512_bf16_winograd(int64_t kernel);

}  // namespace engine
