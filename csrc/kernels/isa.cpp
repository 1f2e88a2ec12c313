#include "kernels/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace engine {

static Isa limit = Isa::amx;

void limit_isa(Isa most) { limit = most; }

#if defined(__x86_64__)

static bool has_amx() {
    unsigned a, b, c, d;
    constexpr unsigned amx_bf16 = 1u << 22, amx_tile = 1u << 24;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & amx_bf16) && (d & amx_tile);
}

static bool has(Isa isa) {
    switch (isa) {
        case Isa::any:
            return true;
        case Isa::avx2:
            return __builtin_cpu_supports("avx2");
        case Isa::avx512:
            return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
        case Isa::avx512_bf16:
            return has(Isa::avx512) && __builtin_cpu_supports("avx512bf16");
        case Isa::amx:
            return has(Isa::avx512_bf16) && has_amx();
    }
    return false;
}

#else

static bool has(Isa isa) { return isa == Isa::any; }

#endif

bool may_use(Isa isa) { return isa <= limit && has(isa); }

}  // namespace engine
