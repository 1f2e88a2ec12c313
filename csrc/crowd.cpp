#include "crowd.h"

#include <fcntl.h>
#include <omp.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>

namespace engine {

namespace {

constexpr int64_t between_looks = 250000000;  // nanoseconds
constexpr int64_t nothing = -1;

// OpenMP threads that sleep while this object lives.
class Sleepers {
public:
    explicit Sleepers(int count) : until_(std::make_shared<Until>()) {
        std::thread([count, until = until_] {
#pragma omp parallel num_threads(count + 1)
            {
#pragma omp barrier  // without it the compiler would leave out the region, which does nothing
            }
            std::unique_lock lock(until->mutex);
            until->changed.wait(lock, [&] { return until->over; });
        }).detach();  // so that the end of the process does not wait for it
    }
    ~Sleepers() {
        const std::lock_guard lock(until_->mutex);
        until_->over = true;
        until_->changed.notify_one();
    }
    Sleepers(const Sleepers&) = delete;

private:
    struct Until {
        std::mutex mutex;
        std::condition_variable changed;
        bool over = false;
    };
    std::shared_ptr<Until> until_;
};

struct CoreTime {
    int64_t ran, waited;
};

// Returns the times of the calling thread since it began; `nothing` if the system does not tell.
CoreTime core_time() {
    const int file = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    if (file < 0) return {nothing, nothing};
    char text[80];
    const ssize_t size = read(file, text, sizeof(text) - 1);
    close(file);
    if (size <= 0) return {nothing, nothing};
    text[size] = '\0';
    char* rest;
    const int64_t ran = std::strtoll(text, &rest, 10);
    return {ran, std::strtoll(rest, nullptr, 10)};
}

// Returns those since the last call in this thread; 0 for the first call, and if the system does not tell.
CoreTime core_time_since() {
    static thread_local CoreTime before{nothing, nothing};
    const CoreTime now = core_time(), last = before;
    before = now;
    if (last.ran == nothing || now.ran == nothing) return {0, 0};
    return {now.ran - last.ran, now.waited - last.waited};
}

int64_t nanoseconds(clockid_t clock) {
    timespec at;
    clock_gettime(clock, &at);
    return int64_t(at.tv_sec) * 1000000000 + at.tv_nsec;
}

}  // namespace

bool Crowd::is_there(int64_t ran, int64_t waited) {
    const double share = double(waited) / std::max(1.0, double(ran) + double(waited));
    crowded_looks_ = share > 0.1 ? crowded_looks_ + 1 : 0;
    quiet_looks_ = share < 0.02 ? quiet_looks_ + 1 : 0;
    if (crowded_looks_ == 2) there_ = true;  // a single one may come from a process that has just begun or ended
    if (quiet_looks_ == 8) there_ = false;
    return there_;
}

void make_way(bool wanted) {
    static auto& sleepers = *new std::unique_ptr<Sleepers>;  // never destroyed, so that it outlives all static objects
    if (wanted == bool(sleepers)) return;
    const int enough = std::max(1, omp_get_num_procs() + 1 - omp_get_max_threads());  // beside the caller's team
    sleepers = wanted ? std::make_unique<Sleepers>(enough) : nullptr;
}

void make_way_for_others() {
    static const bool decided = std::getenv("GOMP_SPINCOUNT") || std::getenv("OMP_WAIT_POLICY");
    if (decided || omp_get_max_threads() == 1) return;
    static std::mutex mutex;
    static int64_t last_look = 0, last_total = 0;
    static Crowd crowd;
    const std::unique_lock lock(mutex, std::try_to_lock);  // if another thread is looking, that is enough
    const int64_t now = nanoseconds(CLOCK_MONOTONIC);
    if (!lock || now - last_look < between_looks) return;
    last_look = now;
    int64_t ran = 0, waited = 0;
#pragma omp parallel reduction(+ : ran, waited)
    {
        const CoreTime mine = core_time_since();
        ran += mine.ran;
        waited += mine.waited;
    }
    const int64_t total = nanoseconds(CLOCK_PROCESS_CPUTIME_ID), of_helpers = total - last_total - ran;
    last_total = total;
    make_way(crowd.is_there(ran, std::max<int64_t>(0, waited - of_helpers)));  // the team may have waited for helpers
}

}  // namespace engine
