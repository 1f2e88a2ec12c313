// Counts the threads of a team that have signal stacks. Some of the threads are new. Run by tests/csrc/test_threads.py.
#include "threads.h"

#include <omp.h>
#include <signal.h>

#include <cstdio>

static int with_stacks(int threads) {
    int count = 0;
#pragma omp parallel num_threads(threads) reduction(+ : count)
    {
        stack_t stack{};
        sigaltstack(nullptr, &stack);
        count += !(stack.ss_flags & SS_DISABLE);
    }
    return count;
}

int main() {
    omp_set_num_threads(4);
    engine::prepare_threads();
    const int first = with_stacks(4);
    with_stacks(2);  // libgomp ends the other two
    engine::prepare_threads();
    const int later = with_stacks(4);
    std::printf("%d of 4 threads had signal stacks, %d of 4 have later\n", first, later);
    return first == 4 && later == 4 ? 0 : 1;
}
