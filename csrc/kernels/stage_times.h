// Measures where the time goes between the bytes of a picture and what a net reads.
#pragma once

#include <cstdint>

namespace engine {

// The times of this thread's pictures, in nanoseconds, while they are measured (`engine time --data`).
struct StageTimes {
    int64_t decoding = 0, resizing = 0, finishing = 0;  // finishing: writing floats, or bytes
};
StageTimes& stage_times();
void measure_stages(bool on);

inline constexpr int64_t no_sum = 0;

// Adds the time of its life to a sum, minus what is added to two other sums meanwhile.
class Stopwatch {
public:
    explicit Stopwatch(int64_t& sum, const int64_t& less = no_sum, const int64_t& also_less = no_sum);
    Stopwatch(const Stopwatch&) = delete;
    Stopwatch& operator=(const Stopwatch&) = delete;
    ~Stopwatch();

private:
    int64_t &sum_, begin_ = 0;
    const int64_t &less_, &also_less_;
};

}  // namespace engine
