// What bf16 gains on this processor.
#pragma once

namespace engine {

// How many times as fast as in float32 one thread multiplies matrices in bf16; 0 where oneDNN has no such instructions
// here. Measured once, in some milliseconds: processors that have the instructions may take as long by them.
double bf16_gain();

}  // namespace engine
