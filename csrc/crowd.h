// Makes way for other processes that run on the cores of this one.
//
// A thread of an OpenMP team that waits for the others spins for milliseconds before it sleeps. That is fastest while
// it has its core to itself. If other processes want the core, it takes turns from the thread that it waits for, and a
// net of small layers takes ten times as long. libgomp's threads sleep nearly at once if there are more of them than
// cores (its manual, GOMP_SPINCOUNT). So, while others want the cores, this adds threads that only sleep.
#pragma once

#include <cstdint>

namespace engine {

// Looks whether other processes want the cores, and calls make_way(). To be called before every pass, by the thread
// that has the team. This process's own threads that do not compute, such as those that decode, do not count as others:
// they need little, and a team that sleeps would cost more. It does nothing if the user has set how threads wait
// (GOMP_SPINCOUNT, OMP_WAIT_POLICY), or if the system does not count how long a thread waits for its core.
void make_way_for_others();

// Makes the waiting threads of the calling thread's team sleep nearly at once; with false, spin as libgomp lets them.
void make_way(bool);

// Decides whether others want the cores, from how long the threads of a team have had them between two looks.
class Crowd {
public:
    // ran, waited: nanoseconds since the last look, summed over the threads, in which they ran, and in which they could
    // have run but other processes did.
    bool is_there(int64_t ran, int64_t waited);

private:
    bool there_ = false;
    int crowded_looks_ = 0, quiet_looks_ = 0;  // in a row
};

}  // namespace engine
