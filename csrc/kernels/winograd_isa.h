// The instruction sets for which there are Winograd's transforms.
#pragma once

#include "kernels/winograd.h"

namespace engine {

const WinogradKernels<float>& avx2_winograd();
const WinogradKernels<float>& avx512_winograd();
const WinogradKernels<bf16>& avx512_bf16_winograd();

}  // namespace engine
