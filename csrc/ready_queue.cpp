#include "ready_queue.h"

#include <algorithm>
#include <chrono>

namespace engine {

static int64_t now() {  // std::chrono::steady_clock is CLOCK_MONOTONIC on Linux
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

ReadyQueue::ReadyQueue(int buckets) : buckets_(buckets) {
    if (buckets < 0) throw std::invalid_argument("ReadyQueue: a negative number of buckets");
    slots_ = std::make_unique<Slot[]>(size_t(buckets));
    for (int bucket = 0; bucket < buckets; ++bucket) slots_[bucket].event.bucket = bucket;
}

ReadyQueue::Slot& ReadyQueue::slot(int bucket) const {
    if (bucket < 0 || bucket >= buckets_)
        throw std::out_of_range("bucket " + std::to_string(bucket) + " of " + std::to_string(buckets_));
    return slots_[bucket];
}

bool ReadyQueue::in_flight(const Slot& slot) {
    return slot.finished.load(std::memory_order_acquire) != slot.marked.load(std::memory_order_acquire);
}

void ReadyQueue::begin_step(int64_t step) {
    for (int bucket = 0; bucket < buckets_; ++bucket)
        if (in_flight(slots_[bucket]))
            throw std::logic_error("step " + std::to_string(step) + " begins while bucket " + std::to_string(bucket) +
                                   " of the step before is in flight");
    if (step <= step_.load()) throw std::logic_error("step " + std::to_string(step) + " has begun already");
    step_.store(step);
}

void ReadyQueue::ready(int bucket) {
    Slot& slot = this->slot(bucket);
    const int64_t step = step_.load();
    if (step < 0 || slot.marked.load(std::memory_order_relaxed) == step)
        throw std::logic_error(
            "bucket " + std::to_string(bucket) +
            (step < 0 ? " is ready outside a step" : " is marked ready twice in step " + std::to_string(step)));
    {
        std::lock_guard<std::mutex> lock(mutex_);
        slot.event.step = step;
        slot.event.ready = now();
        slot.event.start = 0;
        slot.marked.store(step, std::memory_order_release);
    }
    ready_.notify_all();
}

bool ReadyQueue::wait_ready(int bucket, double timeout) {
    Slot& slot = this->slot(bucket);
    std::unique_lock<std::mutex> lock(mutex_);
    const auto arrived = [&] { return stopped_.load() || in_flight(slot); };
    if (timeout < 0)
        ready_.wait(lock, arrived);
    else
        ready_.wait_for(lock, std::chrono::duration<double>(timeout), arrived);
    if (stopped_.load() || !in_flight(slot)) return false;
    if (slot.event.start == 0) slot.event.start = slot.event.reduced = now();  // at the bucket's first chunk
    return true;
}

int ReadyQueue::wait_first(const std::vector<int>& order) {
    std::unique_lock<std::mutex> lock(mutex_);
    int first = -1;
    ready_.wait(lock, [&] {
        if (stopped_.load()) return true;
        const auto found = std::find_if(order.begin(), order.end(), [&](int b) { return in_flight(slot(b)); });
        if (found == order.end()) return false;
        first = *found;
        return true;
    });
    return first;
}

void ReadyQueue::reduced(int bucket) {
    std::lock_guard<std::mutex> lock(mutex_);
    slot(bucket).event.reduced = now();
}

void ReadyQueue::done(int bucket, int server) {
    Slot& slot = this->slot(bucket);
    {
        std::lock_guard<std::mutex> lock(mutex_);
        slot.event.server = server;
        slot.event.end = now();
        if (recording_) events_.push_back(slot.event);
        slot.finished.store(slot.marked.load(), std::memory_order_release);
    }
    done_.notify_all();
}

void ReadyQueue::wait_done(int bucket) {
    Slot& slot = this->slot(bucket);
    if (!in_flight(slot) && !failed_.load(std::memory_order_acquire)) return;
    const int64_t begin = now();
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [&] { return stopped_.load() || !in_flight(slot); });
    const int64_t waited = now() - begin;
    slot.waited.fetch_add(waited, std::memory_order_relaxed);
    waited_ns_.fetch_add(waited, std::memory_order_relaxed);
    if (failed_.load()) throw ParkedError(error_);
    if (in_flight(slot))
        throw ParkedError("the queue was closed while bucket " + std::to_string(bucket) + " was in flight");
}

bool ReadyQueue::wait_all_done(double timeout) {
    if (timeout >= 0) {
        const auto over = [&] {
            return stopped_.load() || std::none_of(slots_.get(), slots_.get() + buckets_, in_flight);
        };
        std::unique_lock<std::mutex> lock(mutex_);
        if (!done_.wait_for(lock, std::chrono::duration<double>(timeout), over)) return false;
    }
    for (int bucket = 0; bucket < buckets_; ++bucket) wait_done(bucket);
    return true;
}

void ReadyQueue::abandon() {
    std::lock_guard<std::mutex> lock(mutex_);  // idle servers read the slots under it
    for (int bucket = 0; bucket < buckets_; ++bucket) {
        slots_[bucket].marked.store(-1);
        slots_[bucket].finished.store(-1);
    }
    step_.store(-1);
}

void ReadyQueue::fail(const std::string& message) {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!failed_.load()) error_ = message;
        failed_.store(true, std::memory_order_release);
        stopped_.store(true, std::memory_order_release);
    }
    ready_.notify_all();
    done_.notify_all();
}

void ReadyQueue::close() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stopped_.store(true, std::memory_order_release);
    }
    ready_.notify_all();
    done_.notify_all();
}

std::vector<int> ReadyQueue::missing() const {
    std::vector<int> missing;
    for (int bucket = 0; bucket < buckets_; ++bucket)
        if (slots_[bucket].marked.load() != step_.load()) missing.push_back(bucket);
    return missing;
}

ReadyQueue::Event ReadyQueue::times(int bucket) const {
    std::lock_guard<std::mutex> lock(mutex_);
    return slot(bucket).event;
}

void ReadyQueue::record(bool on) {
    std::lock_guard<std::mutex> lock(mutex_);
    recording_ = on;
}

std::vector<ReadyQueue::Event> ReadyQueue::take_events() {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<Event> events;
    events.swap(events_);
    return events;
}

int64_t ReadyQueue::waited_ns(int bucket) const { return slot(bucket).waited.load(std::memory_order_relaxed); }

}  // namespace engine
