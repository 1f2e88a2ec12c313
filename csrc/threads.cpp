#include "threads.h"

#include <omp.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace engine {

void flush_denormals_here() {
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040);  // FTZ (bit 15) and DAZ (bit 6)
#endif
}

int threads() { return omp_get_max_threads(); }

void flush_denormals() {
    static thread_local int team = 0;  // of this size have been set
    if (team == omp_get_max_threads()) return;
    team = omp_get_max_threads();
#pragma omp parallel
    flush_denormals_here();
}

}  // namespace engine
