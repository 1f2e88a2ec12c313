// Numbers of blobs that stand for whole ones: labels, rows, images, pixels. Data may hold anything, and a cast of what
// no integer holds is undefined.
#pragma once

#include <cstdint>
#include <string>

namespace engine {

// `value` without its fraction; of numbers that are too large the nearest there is, of what is not a number the least.
inline int64_t whole(double value) {
    constexpr double limit = 9223372036854775808.0;  // 2^63
    if (!(value >= -limit)) return INT64_MIN;
    return value < limit ? int64_t(value) : INT64_MAX;
}

// The nearest byte; 0 of what is not a number.
inline uint8_t nearest_byte(float value) {
    return uint8_t(int(value > 0 ? (value < 255 ? value : 255.0f) + 0.5f : 0.0f));
}

// For messages: without a fraction where there is none.
inline std::string number_text(float value) {
    return value == float(whole(value)) ? std::to_string(whole(value)) : std::to_string(value);
}

}  // namespace engine
