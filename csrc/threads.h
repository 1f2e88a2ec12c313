// The settings that every computing thread needs.
#pragma once

#include <vector>

namespace engine {

// Prepares the calling thread and its OpenMP team. To be called before every pass: another library may have undone it,
// and libgomp ends the threads that a smaller team does not need and makes new ones for the next large team.
//
// Denormal numbers count as zero, because they cost a hundred cycles each: once gradients fade, they can slow a step
// fifty-fold.
//
// Threads get a stack for signals, for handlers that ask for it, as Python's do. Some of oneDNN's sgemm kernels let the
// stack pointer point into the heap, which a handler on that stack would overwrite (oneDNN's issue 4845, mended in
// March 2026).
void prepare_threads();

void flush_denormals();  // makes them count as zero in the calling thread alone, for threads without a team

// Keeps denormal numbers from counting as zero in the calling thread, while this object lives.
class KeepDenormals {
public:
    KeepDenormals();
    ~KeepDenormals();
    KeepDenormals(const KeepDenormals&) = delete;

private:
    unsigned before_ = 0;
};

int threads();  // of the calling thread's OpenMP team

// Returns the cores to which OpenMP has bound the calling thread's team (OMP_PROC_BIND), ascending; empty if it has
// not.
std::vector<int> bound_cores();

}  // namespace engine
