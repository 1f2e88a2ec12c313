#include "kernels/picture.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/stage_times.h"
#include "kernels/vectorised.h"

namespace engine {

// Memory that a thread keeps from picture to picture.
struct Scratch {
    AxisWeights x, y;
    std::vector<double> wanted;
    std::vector<uint8_t> packed, greys;  // the last rows_kept rows
    std::vector<uint32_t> rows;          // resized rows: those of one row of the result, and others of the last group
    std::vector<uint32_t> finished;
    std::vector<const uint8_t*> sources;
    std::ptrdiff_t row_pixels = 0;
};

namespace {

Scratch& own_scratch() {
    thread_local const auto scratch = std::make_unique<Scratch>();  // a pointer, because thread-local memory is small
    return *scratch;
}

// Replaces the three colours of pixels by Pillow's brightness.
ENGINE_VECTORISED void to_brightness(const uint8_t* pixels, int count, uint8_t* out) {
    for (int i = 0; i < count; ++i) {
        uint32_t pixel;
        std::memcpy(&pixel, pixels + 4 * i, 4);
        const uint32_t blue = pixel & 255, green = pixel >> 8 & 255, red = pixel >> 16 & 255;
        const uint32_t grey = (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16;
        pixel = grey * 0x10101;
        std::memcpy(out + 4 * i, &pixel, 4);
    }
}

// Writes one colour of a row of pixels, (pixel - mean) * scale.
template <typename MeanAt>
ENGINE_INLINE void write_colour(const uint32_t* pixels, int shift, std::ptrdiff_t count, MeanAt mean_at, float scale,
                                float* out) {
    for (std::ptrdiff_t i = 0; i < count; ++i) out[i] = (float(int(pixels[i] >> shift & 255)) - mean_at(i)) * scale;
}

ENGINE_VECTORISED void less_value(const uint32_t* pixels, int shift, std::ptrdiff_t count, float mean, float scale,
                                  float* out) {
    write_colour(pixels, shift, count, [=](std::ptrdiff_t) { return mean; }, scale, out);
}

ENGINE_VECTORISED void less_row(const uint32_t* pixels, int shift, std::ptrdiff_t count, const float* mean, float scale,
                                float* out) {
    write_colour(pixels, shift, count, [=](std::ptrdiff_t i) { return mean[i]; }, scale, out);
}

ENGINE_VECTORISED void less_mirrored_row(const uint32_t* pixels, int shift, std::ptrdiff_t count, const float* mean,
                                         float scale, float* out) {
    write_colour(pixels, shift, count, [=](std::ptrdiff_t i) { return mean[count - 1 - i]; }, scale, out);
}

}  // namespace

int shrink_for(const Resizing& r) {
    // The decoder's smaller picture is sharper than a filter's. If the filter still shrinks it 2.5 times or more, the
    // difference is half a grey level on average, for all filters but the box; if the filter has nothing left to do,
    // four times as much.
    constexpr double rest = 2.5;
    if (r.filter == Filter::nearest || r.filter == Filter::box) return 1;
    const double times = std::min((r.right - r.left) / r.width, (r.bottom - r.top) / r.height) / rest;
    return times >= 8 ? 8 : times >= 4 ? 4 : times >= 2 ? 2 : 1;
}

Resampler::Resampler(int width, int height, const Resizing& resizing, const CropWindow& window, const Target& target,
                     bool to_gray, bool plain)
    : window_(window),
      target_(target),
      to_gray_(to_gray),
      plain_(plain),
      at_once_(rows_at_once(plain)),
      scratch_(own_scratch()) {
    Scratch& s = scratch_;
    make_axis(resizing.filter, resizing.left, resizing.right, width, resizing.width, window.left, window.width,
              window.mirror, s.wanted, s.x);
    make_axis(resizing.filter, resizing.top, resizing.bottom, height, resizing.height, window.top, window.height, false,
              s.wanted, s.y);
    s.row_pixels = window.width + std::ptrdiff_t(row_slack) / 4;
    // Buffers only grow. Bytes behind their pixels may be anything, because they are multiplied by zero.
    const auto grow = [](auto& memory, std::ptrdiff_t size) {
        memory.resize(std::max(memory.size(), std::size_t(size)));
    };
    grow(s.rows, s.row_pixels * (s.y.most + rows_kept - 1));
    grow(s.finished, s.row_pixels);
    grow(s.sources, s.y.most + 1);
    if (to_gray) grow(s.greys, rows_kept * (4 * std::ptrdiff_t(s.x.end - s.x.begin) + std::ptrdiff_t(row_slack)));
}

PixelRectangle Resampler::needed() const {
    const AxisWeights &x = scratch_.x, &y = scratch_.y;
    return {x.begin, y.begin, x.end - x.begin, y.end - y.begin};
}

void Resampler::row(const uint8_t* pixels) {
    StageTimes& times = stage_times();
    const Stopwatch watch(times.resizing, times.finishing);
    Scratch& s = scratch_;
    const int width = s.x.end - s.x.begin, height = s.y.end - s.y.begin;
    if (to_gray_) {
        uint8_t* grey = s.greys.data() + taken_ % rows_kept * (4 * std::ptrdiff_t(width) + std::ptrdiff_t(row_slack));
        to_brightness(pixels, width, grey);
        pixels = grey;
    }
    const int ring = s.y.most + rows_kept - 1;
    const auto kept = [&](int y) {  // y: the row in needed()
        return reinterpret_cast<uint8_t*>(s.rows.data() + y % ring * s.row_pixels);
    };
    const int place = taken_ % at_once_;  // among the rows that are resized together
    waiting_[place] = pixels;
    ++taken_;
    if (place + 1 < at_once_ && taken_ < height) return;
    uint8_t* outs[rows_kept];
    for (int k = 0; k < at_once_; ++k) {  // if the last ones are fewer, the last row is resized several times
        waiting_[k] = waiting_[std::min(k, place)];
        outs[k] = kept(taken_ - 1 - place + std::min(k, place));
    }
    resize_rows(waiting_, at_once_, s.x, window_.width, outs, plain_);
    for (; written_ < window_.height; ++written_) {
        const int first = s.y.firsts[std::size_t(written_)] - s.y.begin, count = s.y.counts[std::size_t(written_)];
        if (first + count > taken_) break;
        if (count == 1) {
            finish(written_, s.rows.data() + first % ring * s.row_pixels);
            continue;
        }
        for (int k = 0; k < count; ++k) s.sources[std::size_t(k)] = kept(first + k);
        s.sources[std::size_t(count)] = s.sources[0];  // completes a pair, with weight 0
        blend_rows(s.sources.data(), s.y.weights_of(written_), count + count % 2, 4 * window_.width,
                   reinterpret_cast<uint8_t*>(s.finished.data()), plain_);
        finish(written_, s.finished.data());
    }
}

void Resampler::finish(int y, const uint32_t* row) const {
    const Stopwatch watch(stage_times().finishing);
    const int width = window_.width;
    if (!target_.floats) {
        uint8_t* out = target_.bytes + std::ptrdiff_t(y) * width * target_.channels;
        for (int i = 0; i < width; ++i)
            for (int c = 0; c < target_.channels; ++c) *out++ = uint8_t(row[i] >> 8 * c);
        return;
    }
    for (int c = 0; c < target_.channels; ++c) {
        float* out = target_.floats + (std::ptrdiff_t(c) * window_.height + y) * width;
        if (target_.mean.kind != Mean::Kind::image) {
            const float mean = target_.mean.kind == Mean::Kind::channel ? target_.mean.values[c] : 0.0f;
            less_value(row, 8 * c, width, mean, target_.scale, out);
            continue;
        }
        const std::ptrdiff_t line = std::ptrdiff_t(c) * target_.mean_height + window_.top + y;
        const float* mean = target_.mean.values + line * target_.mean_width + window_.left;
        (window_.mirror ? less_mirrored_row : less_row)(row, 8 * c, width, mean, target_.scale, out);
    }
}

void read_pixels(const ImageView<uint8_t>& image, const PixelRectangle& rectangle, RowSink& sink) {
    std::vector<uint8_t>& packed = own_scratch().packed;
    const std::size_t row_bytes = std::size_t(rectangle.width) * 4 + row_slack;
    packed.resize(std::max(packed.size(), rows_kept * row_bytes));
    const std::ptrdiff_t step = image.column_stride, channel = image.channels > 1 ? image.channel_stride : 0;
    for (int y = 0; y < rectangle.height; ++y) {
        const uint8_t* source = image.data + (rectangle.top + y) * image.row_stride + rectangle.left * step;
        uint8_t* row = packed.data() + std::size_t(y % rows_kept) * row_bytes;
        for (uint8_t *out = row, *end = row + 4 * std::ptrdiff_t(rectangle.width); out < end;
             source += step, out += 4) {
            out[0] = source[0];
            out[1] = source[channel];
            out[2] = source[2 * channel];
        }
        sink.row(row);
    }
}

}  // namespace engine
