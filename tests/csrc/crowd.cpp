// Measures the processor time of an idle team that does not make way, that makes way for processes that want its cores,
// and that was told that no process does. Run by tests/csrc/test_crowd.py.
#include "crowd.h"

#include <omp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <vector>

static double seconds(clockid_t clock) {
    timespec at;
    clock_gettime(clock, &at);
    return double(at.tv_sec) + 1e-9 * double(at.tv_nsec);
}

// Returns the milliseconds of processor time of a parallel region and the 30 ms of idleness after it.
static double idle_ms() {
    const double begin = seconds(CLOCK_PROCESS_CPUTIME_ID);
    for (int i = 0; i < 10; i++) {
#pragma omp parallel
        {
#pragma omp barrier
        }
        usleep(30000);
    }
    return 100 * (seconds(CLOCK_PROCESS_CPUTIME_ID) - begin);
}

static std::vector<pid_t> spinning_processes(int count) {
    std::vector<pid_t> found;
    for (int i = 0; i < count; i++) {
        const pid_t child = fork();
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (volatile long forever = 0;; forever = forever + 1) {
            }
        }
        found.push_back(child);
    }
    return found;
}

int main() {
    const auto others = spinning_processes(2 * omp_get_num_procs());  // forked before there is a team
    omp_set_num_threads(omp_get_num_procs());
    const double spinning = idle_ms();
    double beside_others = spinning;
    const double begin = seconds(CLOCK_MONOTONIC);
    while (beside_others > spinning / 4 && seconds(CLOCK_MONOTONIC) - begin < 60) {
        engine::make_way_for_others();
        beside_others = idle_ms();
    }
    for (const pid_t child : others) {
        kill(child, SIGKILL);
        waitpid(child, nullptr, 0);
    }
    engine::make_way(false);
    usleep(500000);  // waits until the threads that only sleep have ended
    const double again = idle_ms();
    std::printf("an idle team's ms: %.2f, beside others %.2f, then %.2f\n", spinning, beside_others, again);

    engine::Crowd crowd;
    bool as_expected = !crowd.is_there(1000, 50) && !crowd.is_there(1000, 200) && crowd.is_there(1000, 200);
    for (int i = 0; i < 7; i++) as_expected &= crowd.is_there(1000, 10);
    as_expected &= !crowd.is_there(1000, 10);  // no crowd in eight looks one after the other
    std::printf("the rule: %s\n", as_expected ? "as expected" : "otherwise");
    return beside_others <= spinning / 4 && again > spinning / 2 && as_expected ? 0 : 1;
}
