// Reads and writes eight neighbouring numbers of an array, at any address, as one vector.
#pragma once

#include "kernels/vectorised.h"

namespace engine {

typedef float Eight __attribute__((vector_size(32), aligned(4)));

ENGINE_INLINE const Eight& eight(const float* from) { return *reinterpret_cast<const Eight*>(from); }
ENGINE_INLINE Eight& eight(float* from) { return *reinterpret_cast<Eight*>(from); }

}  // namespace engine
