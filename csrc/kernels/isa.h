// The instruction sets that kernels of our own may use: those of this processor, up to a limit. oneDNN has such a
// limit, too (ONEDNN_MAX_CPU_ISA), and the extension sets this one after it: what is measured under it is one
// processor.
#pragma once

namespace engine {

enum class Isa { any, avx2, avx512, avx512_bf16, amx };

void limit_isa(Isa most);

// avx512: with its extensions for bytes, doublewords and vectors of 128 and 256 bits, as every processor but the first.
// amx says nothing of whether the system grants its tiles.
bool may_use(Isa isa);

}  // namespace engine
