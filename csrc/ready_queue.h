// Where the executor and the communication servers meet, bucket by bucket. Knows neither MPI nor Python.
//
//   solver thread:  begin_step(); backward: ready(b) ...;   next forward: wait_done(b) before the first reader of b
//   a server:       for its buckets in a fixed order: wait_ready(b); reduce; reduced(b); update; done(b)
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

namespace engine {

// What a server could not do, raised again in the thread that waits for it.
struct ParkedError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class ReadyQueue {
public:
    struct Event {  // the life of one bucket in one step; times in nanoseconds of CLOCK_MONOTONIC
        int64_t step;
        int bucket, server;
        int64_t ready, start, reduced, end;
    };

    explicit ReadyQueue(int buckets);

    int size() const { return buckets_; }

    // Solver thread. Opens step `step`: from here every bucket is marked ready once. Throws std::logic_error when
    // buckets of the step before are still in flight.
    void begin_step(int64_t step);
    // The gradients of `bucket` are complete. Throws std::logic_error outside a step, or when marked twice in one.
    void ready(int bucket);
    // Returns when the update of `bucket` is in the weights, at once if nothing is in flight. Throws ParkedError.
    void wait_done(int bucket);
    // False when the time is over (seconds; negative: no limit).
    bool wait_all_done(double timeout = -1);
    // Solver thread, where no bucket is in flight or no server works: forgets the open step and those before, which may
    // then begin again.
    void abandon();

    // A server. Waits until `bucket` is ready; false when the time is over (seconds; negative: no limit) or the queue
    // has stopped.
    bool wait_ready(int bucket, double timeout = -1);
    // Waits until some bucket of `order` is ready; the first of them in that order, -1 when the queue has stopped.
    int wait_first(const std::vector<int>& order);
    void reduced(int bucket);  // takes the time only
    void done(int bucket, int server = 0);
    // Parks the first error and stops the queue: waiters of either side wake up.
    void fail(const std::string& message);
    void close();
    bool stopped() const { return stopped_.load(std::memory_order_acquire); }

    // Buckets of the open step that backward has not marked yet; empty when it is complete.
    std::vector<int> missing() const;
    // The latest step's event of `bucket`.
    Event times(int bucket) const;
    // While recording, done() keeps every event until take_events() collects them.
    void record(bool on);
    std::vector<Event> take_events();
    // Time that wait_done and wait_all_done spent blocked since the queue was made: exposed communication.
    int64_t waited_ns() const { return waited_ns_.load(std::memory_order_relaxed); }
    // The part of it that was spent on `bucket`.
    int64_t waited_ns(int bucket) const;

private:
    struct Slot {
        std::atomic<int64_t> marked{-1}, finished{-1};  // the last step in which it was ready, done
        std::atomic<int64_t> waited{0};
        Event event{-1, -1, -1, 0, 0, 0, 0};
    };

    Slot& slot(int bucket) const;
    static bool in_flight(const Slot& slot);

    const int buckets_;
    std::unique_ptr<Slot[]> slots_;
    std::atomic<int64_t> step_{-1};
    std::atomic<bool> stopped_{false}, failed_{false};
    std::atomic<int64_t> waited_ns_{0};
    mutable std::mutex mutex_;  // guards what follows, and the sleepers of both conditions
    std::condition_variable ready_, done_;
    std::string error_;
    bool recording_ = false;
    std::vector<Event> events_;
};

}  // namespace engine
