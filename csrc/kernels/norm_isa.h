// Declares the kernels of BatchNorm for each instruction set, and includes what these need to be compiled.
#pragma once

#include <type_traits>

#include "kernels/norm_rows.h"
#include "kernels/vectorised.h"

namespace engine {

const NormKernels<float>& avx2_kernels();
const NormKernels<float>& avx512_kernels();
const NormKernels<bf16>& avx512_bf16_kernels();

}  // namespace engine
