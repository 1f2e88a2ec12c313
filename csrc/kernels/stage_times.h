// Where the time goes between the bytes of a picture and what a net reads.
#pragma once

#include <cstdint>

namespace engine {

// Where the time of this thread's pictures has gone, in nanoseconds, while that is measured (`engine time --data`).
struct StageTimes {
    int64_t decoding = 0, resizing = 0, finishing = 0;  // finishing: to floats, or bytes
};
StageTimes& stage_times();
void measure_stages(bool on);

inline constexpr int64_t no_part = 0;

// Adds what passes until its end to a sum, less what is added to the parts within.
class Stopwatch {
public:
    explicit Stopwatch(int64_t& sum, const int64_t& part = no_part, const int64_t& other_part = no_part);
    Stopwatch(const Stopwatch&) = delete;
    Stopwatch& operator=(const Stopwatch&) = delete;
    ~Stopwatch();

private:
    int64_t &sum_, begin_ = 0;
    const int64_t &part_, &other_part_;
};

}  // namespace engine
