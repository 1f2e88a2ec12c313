#include "threads.h"

#include <omp.h>
#include <sched.h>
#include <signal.h>
#include <sys/auxv.h>

#include <cstddef>
#include <memory>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#ifndef AT_MINSIGSTKSZ
#define AT_MINSIGSTKSZ 51
#endif

namespace engine {

namespace {

// A stack for the signals of the calling thread, unless it has one already (faulthandler's).
class SignalStack {
public:
    SignalStack() {
        stack_t present{};
        if (sigaltstack(nullptr, &present) != 0 || !(present.ss_flags & SS_DISABLE)) return;
        const std::size_t size = (64 << 10) + getauxval(AT_MINSIGSTKSZ);  // the latter is for registers: 11 KB with AMX
        memory_.reset(new char[size]);
        stack_t own{};
        own.ss_sp = memory_.get();
        own.ss_size = size;
        if (sigaltstack(&own, nullptr) != 0) memory_.reset();
    }

    ~SignalStack() {
        if (!memory_) return;
        stack_t none{};
        none.ss_flags = SS_DISABLE;
        sigaltstack(&none, nullptr);
    }

private:
    std::unique_ptr<char[]> memory_;
};

#if defined(__x86_64__)
constexpr unsigned flushing = 0x8040;  // FTZ (bit 15) and DAZ (bit 6)
#endif

}  // namespace

void flush_denormals() {
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | flushing);
#endif
}

#if defined(__x86_64__)
KeepDenormals::KeepDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ & ~flushing); }
KeepDenormals::~KeepDenormals() { _mm_setcsr(before_); }
#else
KeepDenormals::KeepDenormals() = default;
KeepDenormals::~KeepDenormals() = default;
#endif

int threads() { return omp_get_max_threads(); }

std::vector<int> bound_cores() {
    if (omp_get_proc_bind() == omp_proc_bind_false) return {};
    cpu_set_t all;
    CPU_ZERO(&all);
#pragma omp parallel
    {
        cpu_set_t mine;
        CPU_ZERO(&mine);
        sched_getaffinity(0, sizeof(mine), &mine);
#pragma omp critical
        CPU_OR(&all, &all, &mine);
    }
    std::vector<int> found;
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &all)) found.push_back(core);
    return found;
}

void prepare_threads() {
#pragma omp parallel
    {
        flush_denormals();
        static thread_local SignalStack stack;
    }
}

}  // namespace engine
