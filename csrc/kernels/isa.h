// Tells which instruction sets our own kernels may use: those of this processor, up to a limit. oneDNN has such a
// limit, too (ONEDNN_MAX_CPU_ISA), and the extension sets this one to the same, so that both see one processor.
#pragma once

namespace engine {

enum class Isa { any, avx2, avx512, avx512_bf16, amx };

void limit_isa(Isa most);

// avx512 includes its extensions for bytes, doublewords and vectors of 128 and 256 bits, which all processors but the
// first ones have. amx does not tell whether the system permits the tiles: see AmxGradient::available().
bool may_use(Isa isa);

}  // namespace engine
