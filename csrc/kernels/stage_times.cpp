#include "kernels/stage_times.h"

#include <atomic>
#include <chrono>

namespace engine {

namespace {

std::atomic<bool> measuring{false};

int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

}  // namespace

StageTimes& stage_times() {
    thread_local StageTimes times;
    return times;
}

void measure_stages(bool on) { measuring = on; }

Stopwatch::Stopwatch(int64_t& sum, const int64_t& less, const int64_t& also_less)
    : sum_(sum), less_(less), also_less_(also_less) {
    if (measuring.load(std::memory_order_relaxed)) begin_ = now() - less_ - also_less_;
}

Stopwatch::~Stopwatch() {
    if (begin_) sum_ += now() - less_ - also_less_ - begin_;
}

}  // namespace engine
