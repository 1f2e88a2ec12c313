#include "kernels/retouch.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <memory>
#include <vector>

#include "kernels/dropout_mask.h"
#include "kernels/vectorised.h"
#include "kernels/whole.h"

namespace engine {
namespace {

using Table = std::array<uint8_t, 256>;
using Histogram = std::array<int, 256>;

// A picture that is changed in place; changes that read neighbours read them from a copy.
struct Picture {
    uint8_t* pixels;
    int height, width, channels;

    std::ptrdiff_t count() const { return std::ptrdiff_t(height) * width; }
    std::ptrdiff_t size() const { return count() * channels; }
};

// Memory that a thread keeps from picture to picture.
struct Scratch {
    std::vector<uint8_t> copy;
    std::vector<uint16_t> rows;
};

Scratch& own_scratch() {
    thread_local const auto scratch = std::make_unique<Scratch>();  // a pointer, because thread-local memory is small
    return *scratch;
}

const uint8_t* copy_of(const Picture& picture) {
    std::vector<uint8_t>& copy = own_scratch().copy;
    copy.assign(picture.pixels, picture.pixels + picture.size());
    return copy.data();
}

uint8_t to_byte(double value) { return uint8_t(whole(std::clamp(std::rint(value), 0.0, 255.0))); }

template <typename Function>
Table table_of(Function function) {
    Table table;
    for (int p = 0; p < 256; ++p) table[std::size_t(p)] = to_byte(function(double(p)));
    return table;
}

void look_up(const Picture& picture, const Table& table) {
    for (uint8_t *p = picture.pixels, *end = p + picture.size(); p < end; ++p) *p = table[*p];
}

// Changes each channel by the table that make_table(its histogram) returns.
template <typename Function>
void by_histogram(const Picture& picture, Function make_table) {
    for (int c = 0; c < picture.channels; ++c) {
        Histogram counts{};
        uint8_t* const begin = picture.pixels + c;
        uint8_t* const end = picture.pixels + picture.size();
        for (const uint8_t* p = begin; p < end; p += picture.channels) ++counts[*p];
        const Table table = make_table(counts);
        for (uint8_t* p = begin; p < end; p += picture.channels) *p = table[*p];
    }
}

// Returns Pillow's brightness of blue, green and red.
int brightness(const uint8_t* p) { return (p[2] * 19595 + p[1] * 38470 + p[0] * 7471 + 0x8000) >> 16; }

Table stretched(const Histogram& counts) {
    int low = 0, high = 255;
    while (low < 255 && !counts[std::size_t(low)]) ++low;
    while (high > 0 && !counts[std::size_t(high)]) --high;
    if (high <= low) return table_of([](double value) { return value; });
    return table_of([=](double value) { return (value - low) * 255 / (high - low); });
}

Table equalized(const Histogram& counts) {
    int64_t total = 0, last = 0;
    for (const int count : counts) {
        total += count;
        if (count) last = count;
    }
    const int64_t step = (total - last) / 255;
    if (!step) return table_of([](double value) { return value; });
    Table table;
    int64_t below = step / 2;
    for (std::size_t p = 0; p < 256; ++p) {
        table[p] = uint8_t(std::min<int64_t>(below / step, 255));
        below += counts[p];
    }
    return table;
}

void equalize_light(const Picture& picture) {
    const int n = picture.channels;
    uint8_t* const end = picture.pixels + picture.size();
    const auto light = [=](const uint8_t* p) { return n == 1 ? *p : brightness(p); };
    Histogram counts{};
    for (const uint8_t* p = picture.pixels; p < end; p += n) ++counts[std::size_t(light(p))];
    std::size_t first = 0;
    while (first < 255 && !counts[first]) ++first;
    const double rest = double(picture.count() - counts[first]);
    if (rest == 0) return;  // all pixels have one brightness
    Table table{};
    double below = 0;
    for (std::size_t p = first + 1; p < 256; ++p) table[p] = to_byte((below += counts[p]) * 255 / rest);
    for (uint8_t* p = picture.pixels; p < end; p += n) {
        const int before = light(p), more = table[std::size_t(before)] - before;
        for (int c = 0; c < n; ++c) p[c] = uint8_t(std::clamp(p[c] + more, 0, 255));
    }
}

void contrast(const Picture& picture, double factor) {
    int64_t sum = 0;
    if (picture.channels == 1) {
        for (std::ptrdiff_t i = 0; i < picture.count(); ++i) sum += picture.pixels[i];
    } else {
        for (std::ptrdiff_t i = 0; i < picture.count(); ++i) sum += brightness(picture.pixels + 3 * i);
    }
    const double mean = std::floor(double(sum) / double(picture.count()) + 0.5);
    look_up(picture, table_of([=](double value) { return mean + factor * (value - mean); }));
}

ENGINE_VECTORISED void colour(uint8_t* pixels, std::ptrdiff_t count, float factor) {
    for (std::ptrdiff_t i = 0; i < count; ++i) {
        uint8_t* const p = pixels + 3 * i;
        const float blue = p[0], green = p[1], red = p[2];
        const float grey = float((p[2] * 19595 + p[1] * 38470 + p[0] * 7471 + 0x8000) >> 16);
        p[0] = nearest_byte(grey + factor * (blue - grey));
        p[1] = nearest_byte(grey + factor * (green - grey));
        p[2] = nearest_byte(grey + factor * (red - grey));
    }
}

ENGINE_VECTORISED void saturation(uint8_t* pixels, std::ptrdiff_t count, float factor) {
    for (std::ptrdiff_t i = 0; i < count; ++i) {
        uint8_t* const p = pixels + 3 * i;
        const float blue = p[0], green = p[1], red = p[2];
        const float most = std::max(std::max(blue, green), red), least = std::min(std::min(blue, green), red);
        const float times = std::min(factor, most / std::max(most - least, 1e-6f));  // at most until the least is 0
        p[0] = nearest_byte(most - times * (most - blue));
        p[1] = nearest_byte(most - times * (most - green));
        p[2] = nearest_byte(most - times * (most - red));
    }
}

// Returns the hue of a pixel in sixths of a turn from red, 0 to 6.
inline float hue_of(float blue, float green, float red, float most, float range) {
    const float over = range > 0 ? range : 1;
    const float by_red = (green - blue) / over, by_green = 2 + (blue - red) / over, by_blue = 4 + (red - green) / over;
    const float hue = red == most ? by_red : green == most ? by_green : by_blue;
    return hue < 0 ? hue + 6 : hue;
}

// Returns one colour of a pixel with a hue. offset: 5 for red, 3 for green, 1 for blue.
inline float channel_of(float hue, float offset, float most, float range) {
    float at = hue + offset;
    at = at >= 6 ? at - 6 : at;
    return most - range * std::max(0.0f, std::min(std::min(at, 4 - at), 1.0f));
}

ENGINE_VECTORISED void turn_hue(uint8_t* pixels, std::ptrdiff_t count, float sixths) {
    for (std::ptrdiff_t i = 0; i < count; ++i) {
        uint8_t* const p = pixels + 3 * i;
        const float blue = p[0], green = p[1], red = p[2];
        const float most = std::max(std::max(blue, green), red), least = std::min(std::min(blue, green), red);
        const float range = most - least;
        float hue = hue_of(blue, green, red, most, range) + sixths;  // sixths: 0 to 6
        hue = hue >= 6 ? hue - 6 : hue;
        p[0] = nearest_byte(channel_of(hue, 1, most, range));
        p[1] = nearest_byte(channel_of(hue, 3, most, range));
        p[2] = nearest_byte(channel_of(hue, 5, most, range));
    }
}

void to_hsv(const Picture& picture) {
    for (uint8_t *p = picture.pixels, *end = p + picture.size(); p < end; p += 3) {
        const float blue = p[0], green = p[1], red = p[2];
        const float most = std::max({blue, green, red}), range = most - std::min({blue, green, red});
        const int64_t degrees = whole(30 * hue_of(blue, green, red, most, range) + 0.5f);  // in steps of two
        p[0] = uint8_t(degrees % 180);
        p[1] = nearest_byte(most > 0 ? 255 * range / most : 0);
        p[2] = nearest_byte(most);
    }
}

void reorder(const Picture& picture, const double* values) {
    int from[3];
    for (int c = 0; c < 3; ++c) from[c] = int(std::clamp<int64_t>(whole(values[c]), 0, 2));
    for (uint8_t *p = picture.pixels, *end = p + picture.size(); p < end; p += 3) {
        const uint8_t before[3] = {p[0], p[1], p[2]};
        for (int c = 0; c < 3; ++c) p[c] = before[from[c]];
    }
}

// Pixels at the edge stay as they are.
void sharpen(const Picture& picture, float factor) {
    const uint8_t* const before = copy_of(picture);
    const int n = picture.channels;
    const std::ptrdiff_t row = std::ptrdiff_t(picture.width) * n;
    for (int y = 1; y < picture.height - 1; ++y) {
        const uint8_t* const above = before + (y - 1) * row;
        const uint8_t *const here = above + row, *const below = here + row;
        uint8_t* const out = picture.pixels + y * row;
        for (std::ptrdiff_t i = n; i < row - n; ++i) {
            const int sum = above[i - n] + above[i] + above[i + n] + here[i - n] + 5 * here[i] + here[i + n] +
                            below[i - n] + below[i] + below[i + n];
            const float mean = float((sum + 6) / 13);
            out[i] = nearest_byte(mean + factor * (float(here[i]) - mean));
        }
    }
}

// Returns the place of a pixel, which beyond an edge is mirrored, without repeating the one at the edge.
int mirrored(int at, int size) {
    if (size == 1) return 0;
    while (at < 0 || at >= size) at = at < 0 ? -at : 2 * size - 2 - at;
    return at;
}

constexpr int reach = 3;
constexpr int blur_weights[2 * reach + 1] = {9, 29, 55, 70, 55, 29, 9};  // exp(-x^2 / 4.5), in 256ths

// in: begins `reach` pixels before `out`.
ENGINE_VECTORISED void blur_along(const uint8_t* in, int channels, std::ptrdiff_t row, uint16_t* out) {
    for (std::ptrdiff_t i = 0; i < row; ++i) {
        int sum = 0;
        for (int k = 0; k <= 2 * reach; ++k) sum += blur_weights[k] * in[i + k * channels];
        out[i] = uint16_t(sum);
    }
}

ENGINE_VECTORISED void blur_across(const uint16_t* const* rows, std::ptrdiff_t row, uint8_t* out) {
    for (std::ptrdiff_t i = 0; i < row; ++i) {
        int sum = 1 << 15;
        for (int k = 0; k <= 2 * reach; ++k) sum += blur_weights[k] * rows[k][i];
        out[i] = uint8_t(sum >> 16);
    }
}

void blur(const Picture& picture) {
    const int n = picture.channels, width = picture.width, height = picture.height;
    const std::ptrdiff_t row = std::ptrdiff_t(width) * n;
    std::vector<uint16_t>& rows = own_scratch().rows;
    rows.resize(std::max(rows.size(), std::size_t(picture.size())));
    std::vector<uint8_t>& wide = own_scratch().copy;  // a row with pixels beyond its edges
    wide.resize(std::size_t(row + 2 * reach * n));
    for (int y = 0; y < height; ++y) {
        const uint8_t* const in = picture.pixels + y * row;
        std::copy_n(in, row, wide.begin() + reach * n);
        for (int k = 1; k <= reach; ++k) {
            std::copy_n(in + mirrored(-k, width) * n, n, wide.begin() + (reach - k) * n);
            std::copy_n(in + mirrored(width - 1 + k, width) * n, n, wide.end() - (reach + 1 - k) * n);
        }
        blur_along(wide.data(), n, row, rows.data() + y * row);
    }
    for (int y = 0; y < height; ++y) {
        const uint16_t* from[2 * reach + 1];
        for (int k = -reach; k <= reach; ++k) from[k + reach] = rows.data() + mirrored(y + k, height) * row;
        blur_across(from, row, picture.pixels + y * row);
    }
}

ENGINE_VECTORISED void lower_to(const uint8_t* most, uint8_t* pixels, std::ptrdiff_t count) {
    for (std::ptrdiff_t i = 0; i < count; ++i) pixels[i] = std::min(pixels[i], most[i]);
}

void erode(const Picture& picture) {
    const uint8_t* const before = copy_of(picture);
    const std::ptrdiff_t n = picture.channels, row = picture.width * n;
    for (int y = 0; y < picture.height; ++y) {
        const uint8_t* const in = before + y * row;
        uint8_t* const out = picture.pixels + y * row;
        lower_to(in, out + n, row - n);
        lower_to(in + n, out, row - n);
        if (y > 0) lower_to(in - row, out, row);
        if (y < picture.height - 1) lower_to(in + row, out, row);
    }
}

// Reads each pixel at the place to which the six numbers of m map its centre, which is at halves.
void move(const Picture& picture, const double* m) {
    const uint8_t* const before = copy_of(picture);
    const int n = picture.channels;
    uint8_t* out = picture.pixels;
    for (int y = 0; y < picture.height; ++y) {
        for (int x = 0; x < picture.width; ++x, out += n) {
            const double column = std::floor(m[0] * (x + 0.5) + m[1] * (y + 0.5) + m[2]);
            const double line = std::floor(m[3] * (x + 0.5) + m[4] * (y + 0.5) + m[5]);
            const bool inside = column >= 0 && column < picture.width && line >= 0 && line < picture.height;
            const uint8_t* const in = before + (inside ? (whole(line) * picture.width + whole(column)) * n : 0);
            for (int c = 0; c < n; ++c) out[c] = inside ? in[c] : 0;
        }
    }
}

void dot(const Picture& picture, const double* values) {
    const int n = picture.channels;
    uint64_t state = uint64_t(whole(values[1]));
    for (int64_t left = whole(values[0] * double(picture.count())); left > 0; --left, state += golden) {
        const uint64_t place = mix(state);
        uint8_t* const p = picture.pixels + std::ptrdiff_t((place >> 32) * uint64_t(picture.count()) >> 32) * n;
        const bool salt = place & 1;
        for (int c = 0; c < n; ++c) p[c] = values[2] < 0 ? (salt ? 255 : 0) : to_byte(values[2 + c]);
    }
}

void change_one(const Picture& picture, const Change& change) {
    const double a = change.values[0], b = change.values[1];
    const bool coloured = picture.channels == 3;
    switch (change.kind) {
        case Change::linear:
            return look_up(picture, table_of([=](double p) { return a * p + b; }));
        case Change::steps:
            return look_up(picture, table_of([=](double p) { return std::floor(p / a) * a + std::floor(a / 2); }));
        case Change::bits: {
            const double step = double(1 << std::clamp<int64_t>(8 - whole(a), 0, 8));
            return look_up(picture, table_of([=](double p) { return std::floor(p / step) * step; }));
        }
        case Change::solarize:
            return look_up(picture, table_of([=](double p) { return p >= a ? 255 - p : p; }));
        case Change::contrast:
            return contrast(picture, a);
        case Change::colour:
            return coloured ? colour(picture.pixels, picture.count(), float(a)) : void();
        case Change::sharpness:
            return sharpen(picture, float(a));
        case Change::autocontrast:
            return by_histogram(picture, stretched);
        case Change::equalize:
            return by_histogram(picture, equalized);
        case Change::equalize_light:
            return equalize_light(picture);
        case Change::saturation:
            return coloured ? saturation(picture.pixels, picture.count(), float(a)) : void();
        case Change::hue: {
            const double sixths = a / 60 - 6 * std::floor(a / 360);
            return coloured ? turn_hue(picture.pixels, picture.count(), float(sixths)) : void();
        }
        case Change::order:
            return coloured ? reorder(picture, change.values) : void();
        case Change::blur:
            return blur(picture);
        case Change::erode:
            return erode(picture);
        case Change::affine:
            return move(picture, change.values);
        case Change::dots:
            return dot(picture, change.values);
        case Change::hsv:
            return coloured ? to_hsv(picture) : void();
        case Change::kinds:
            return;
    }
}

}  // namespace

void retouch(uint8_t* pixels, int height, int width, int channels, const Change* changes, int count) {
    const Picture picture{pixels, height, width, channels};
    for (int i = 0; i < count; ++i) change_one(picture, changes[i]);
}

ENGINE_VECTORISED void mix(float* first, float* second, int channels, int height, int width, const Portion& of_first,
                           const Portion& of_second) {
    for (int y = 0; y < channels * height; ++y) {
        const int line = y % height;
        const auto share_at = [=](const Portion& portion, int x) {
            const bool inside = line >= portion.top && line < portion.top + portion.height && x >= portion.left &&
                                x < portion.left + portion.width;
            return inside ? portion.share : 0.0f;
        };
        float* const a = first + std::ptrdiff_t(y) * width;
        float* const b = second + std::ptrdiff_t(y) * width;
        for (int x = 0; x < width; ++x) {
            const float one = a[x], other = b[x], taken = share_at(of_first, x), given = share_at(of_second, x);
            a[x] = one * (1 - taken) + other * taken;
            b[x] = other * (1 - given) + one * given;
        }
    }
}

}  // namespace engine
