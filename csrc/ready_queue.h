// The queue through which the executor hands buckets to the communication servers, and by which it waits for their
// updates. It knows neither MPI nor Python.
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

// The error of a server, parked and thrown again in the thread that waits for the server.
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

    // A bucket is in flight from ready() to done(). Timeouts are in seconds; a negative one is no limit.

    // For the solver's thread.
    // Opens a step, in which every bucket is to be marked ready once. Throws std::logic_error if buckets of the step
    // before are still in flight, or if the step has begun already.
    void begin_step(int64_t step);
    // Marks that the gradients of `bucket` are complete. Throws std::logic_error outside a step, or if it is marked
    // twice in one.
    void ready(int bucket);
    // Returns when the update of `bucket` is in the weights, at once if it is not in flight. Throws ParkedError.
    void wait_done(int bucket);
    // Waits for all buckets. Returns false when the time is over. Throws ParkedError.
    bool wait_all_done(double timeout = -1);
    // Forgets the open step and those before, which may then begin again. No bucket may be in flight, or no server at
    // work.
    void abandon();

    // For servers.
    // Waits until `bucket` is ready. Returns false when the time is over or the queue has stopped.
    bool wait_ready(int bucket, double timeout = -1);
    // Waits until some bucket of `order` is ready. Returns the first of these in that order; -1 when the queue has
    // stopped.
    int wait_first(const std::vector<int>& order);
    void reduced(int bucket);  // notes the time, for events
    void done(int bucket, int server = 0);
    // Parks an error, the first if there are several, and stops the queue: all waits end.
    void fail(const std::string& message);
    // Stops the queue: all waits end.
    void close();
    bool stopped() const { return stopped_.load(std::memory_order_acquire); }

    // Returns the buckets that backward has not marked in the open step yet.
    std::vector<int> missing() const;
    // Returns the event of `bucket` in the latest step.
    Event times(int bucket) const;
    // Begins or stops recording: then done() keeps every event until take_events() returns it.
    void record(bool on);
    std::vector<Event> take_events();
    // Returns the exposed communication: the nanoseconds that waits for done buckets were blocked so far.
    int64_t waited_ns() const { return waited_ns_.load(std::memory_order_relaxed); }
    // Returns those of one bucket.
    int64_t waited_ns(int bucket) const;

private:
    struct Slot {
        std::atomic<int64_t> marked{-1}, finished{-1};  // the last steps in which it was ready and done
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
    mutable std::mutex mutex_;  // guards what follows and the slots' events, and belongs to both conditions
    std::condition_variable ready_, done_;
    std::string error_;
    bool recording_ = false;
    std::vector<Event> events_;
};

}  // namespace engine
