// What every thread that computes must have set.
#pragma once

namespace engine {

// Denormal numbers cost a hundred cycles each; once gradients fade they can slow a step fifty-fold. Sets flush-to-zero
// and denormals-are-zero in the calling thread and in its OpenMP team. Cheap after the first call of a thread.
void flush_denormals();
void flush_denormals_here();  // in the calling thread only: one that has no team

int threads();  // of the calling thread's OpenMP team

}  // namespace engine
