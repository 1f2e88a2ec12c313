// Other processes on the cores of this one.
//
// A thread of an OpenMP team that waits for the others spins for milliseconds before it sleeps. Nothing is faster while
// it has its core to itself. Where other processes want the core, it spins away turns that the thread it waits for
// could have had, and a net of small layers takes ten times as long. libgomp's threads sleep nearly at once where there
// are more of them than cores (its manual, GOMP_SPINCOUNT). So, while others want the cores, there are: some that only
// sleep.
#pragma once

#include <cstdint>

namespace engine {

// Before every pass, by the thread that has the team. Threads of this process that do not compute, such as those that
// decode, are no others: they need little, and a team that sleeps costs more. Does nothing where the user has said how
// threads wait (GOMP_SPINCOUNT, OMP_WAIT_POLICY), and where the system does not count what a thread waits for its core.
void make_way_for_others();

// From now on a thread of the calling thread's team that waits sleeps nearly at once, or spins as libgomp lets it.
void make_way(bool);

// Whether others want the cores, from what the threads of a team have had of them between two looks.
class Crowd {
public:
    // Nanoseconds, summed over the threads: that they ran, and that they could have run while other processes did.
    bool is_there(int64_t ran, int64_t waited);

private:
    bool there_ = false;
    int crowded_looks_ = 0, quiet_looks_ = 0;  // in a row
};

}  // namespace engine
