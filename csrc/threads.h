// Settings that every computing thread needs.
#pragma once

#include <vector>

namespace engine {

// For the calling thread and its OpenMP team, before every pass: another library may have undone it, and libgomp ends
// the threads that a smaller team leaves over and makes new ones for the next large one.
//
// Denormal numbers cost a hundred cycles each; once gradients fade they can slow a step fifty-fold: they count as zero.
//
// Signals are handled on a stack of their own, where a handler asks for that, as Python's do. Some of oneDNN's sgemm
// kernels let the stack pointer point into the heap, which a handler would overwrite (oneDNN's issue 4845, mended in
// March 2026).
void prepare_threads();

void flush_denormals();  // in the calling thread only: one that has no team

// While it lives, denormal numbers are what they are in the calling thread.
class KeepDenormals {
public:
    KeepDenormals();
    ~KeepDenormals();
    KeepDenormals(const KeepDenormals&) = delete;

private:
    unsigned before_ = 0;
};

int threads();  // of the calling thread's OpenMP team

// The cores to which OpenMP has bound the calling thread's team (OMP_PROC_BIND), ascending; empty where it has not.
std::vector<int> bound_cores();

}  // namespace engine
