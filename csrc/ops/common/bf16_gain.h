// Measures what bf16 gains on this processor.
#pragma once

namespace engine {

// Returns how many times as fast as in float32 one thread multiplies matrices in bf16; 0 if oneDNN cannot use bf16
// instructions here. It is measured, once, in some milliseconds: on some processors these instructions gain nothing.
double bf16_gain();

}  // namespace engine
