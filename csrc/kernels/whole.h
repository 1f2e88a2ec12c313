// Converts numbers of blobs that stand for integers: labels, rows, images, pixels. Data may hold anything, and a cast
// of a number that no integer can hold is undefined behaviour.
#pragma once

#include <cstdint>
#include <string>

namespace engine {

// Returns `value` without its fraction; for numbers that are too large the nearest int64_t, for NaN the least.
inline int64_t whole(double value) {
    constexpr double limit = 9223372036854775808.0;  // 2^63
    if (!(value >= -limit)) return INT64_MIN;
    return value < limit ? int64_t(value) : INT64_MAX;
}

// Returns the nearest byte; 0 for NaN.
inline uint8_t nearest_byte(float value) {
    return uint8_t(int(value > 0 ? (value < 255 ? value : 255.0f) + 0.5f : 0.0f));
}

// Returns a number as messages show it: without a fraction if it has none.
inline std::string number_text(float value) {
    return value == float(whole(value)) ? std::to_string(whole(value)) : std::to_string(value);
}

}  // namespace engine
