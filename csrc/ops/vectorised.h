// Kernels of our own are compiled once for each vector width; the widest that the processor has is picked when loading.
#pragma once

#if defined(__x86_64__)
#define ENGINE_VECTORISED __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define ENGINE_VECTORISED
#endif
