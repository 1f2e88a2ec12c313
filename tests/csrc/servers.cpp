// Runs a solver thread and its servers with their queue, buckets and updates, without Python: its lock would hide races
// from the thread sanitizer. Fails if the weights are not those that one thread computes. Run by tests/sanitize/run.py.
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ready_queue.h"
#include "update.h"
#include "wire.h"

namespace {

using namespace engine;

constexpr int buckets = 6, servers = 2, steps = 300;
constexpr int64_t size = 5000, count = buckets * size;  // floats

// The arenas that are trained, and their updater.
struct Training {
    Training() : weights(count), gradients(count), history(count), residual(count), packed(count) {
        std::vector<std::vector<ParameterRange>> ranges;
        for (int bucket = 0; bucket < buckets; bucket++)
            ranges.push_back({{bucket * size, (bucket + 1) * size, 1, 1, bucket}});
        updater = std::make_unique<Updater>(
            "SGD", FloatArena{weights.data(), count}, FloatArena{gradients.data(), count},
            std::vector<FloatArena>{{history.data(), count}}, ranges, std::map<std::string, float>{{"momentum", 0.9f}},
            WeightDecay{0.001f, false}, LocalRates{});
        for (int64_t i = 0; i < count; i++) weights[size_t(i)] = std::sin(float(i));
    }

    void begin(int64_t step) { updater->set_step(0.1 / double(step + 1), 0.5, step); }

    // Computes gradients from the weights, as backward does.
    void backward(int bucket) {
        for (int64_t i = bucket * size; i < (bucket + 1) * size; i++)
            gradients[size_t(i)] = std::cos(weights[size_t(i)]);
    }

    // Packs the gradients as for sending, then updates, as a server does.
    void serve(int bucket) {
        const auto at = size_t(bucket * size);
        pack_bf16(&gradients[at], &residual[at], &packed[at], size);
        updater->apply_range(bucket, 0, size, &packed[at], true);
    }

    std::vector<float> weights, gradients, history, residual;
    std::vector<uint16_t> packed;
    std::unique_ptr<Updater> updater;
};

std::vector<float> by_one_thread() {
    Training training;
    for (int64_t step = 0; step < steps; step++) {
        training.begin(step);
        for (int bucket = buckets; bucket-- > 0;) training.backward(bucket);
        for (int bucket = 0; bucket < buckets; bucket++) training.serve(bucket);
    }
    return training.weights;
}

std::vector<float> by_servers() {
    Training training;
    ReadyQueue queue(buckets);
    queue.record(true);
    std::vector<std::thread> threads;
    for (int server = 0; server < servers; server++) {
        threads.emplace_back([&training, &queue, server] {
            for (;;) {
                for (int bucket = buckets - 1 - server; bucket >= 0; bucket -= servers) {
                    if (!queue.wait_ready(bucket)) return;
                    queue.reduced(bucket);
                    training.serve(bucket);
                    queue.done(bucket, server);
                }
            }
        });
    }
    threads.emplace_back([&queue] {  // a thread that watches
        while (!queue.stopped()) {
            for (int bucket = 0; bucket < buckets; bucket++) {
                queue.times(bucket);
                queue.waited_ns(bucket);
            }
            queue.missing();
            queue.take_events();
        }
    });
    for (int64_t step = 0; step < steps; step++) {
        training.begin(step);
        queue.begin_step(step);
        for (int bucket = buckets; bucket-- > 0;) {
            training.backward(bucket);
            queue.ready(bucket);
        }
        for (int bucket = 0; bucket < buckets; bucket++) queue.wait_done(bucket);
    }
    queue.close();
    for (auto& thread : threads) thread.join();
    return training.weights;
}

// Returns whether a thread that waits for a bucket gets the error of the server that cannot go on.
bool error_arrives() {
    ReadyQueue queue(1);
    queue.begin_step(0);
    std::thread server([&queue] {
        queue.wait_ready(0);
        queue.fail("no route to host");
    });
    queue.ready(0);
    std::string told;
    try {
        queue.wait_all_done();
    } catch (const ParkedError& error) {
        told = error.what();
    }
    server.join();
    return told == "no route to host";
}

}  // namespace

int main() {
    const bool same = by_one_thread() == by_servers(), told = error_arrives();
    std::printf("%s, %s\n", same ? "the same weights" : "OTHER WEIGHTS", told ? "the error arrived" : "NO ERROR");
    return same && told ? 0 : 1;
}
