#include "kernels/image.h"

#include <algorithm>
#include <type_traits>

#include "kernels/vectorised.h"

namespace engine {
namespace {

template <std::ptrdiff_t value>
using Constant = std::integral_constant<std::ptrdiff_t, value>;

// Transforms one row, without mirroring. Common steps between pixels are constants, so that the loop is vectorised.
template <typename T, typename Step, typename MeanAt>
ENGINE_INLINE void subtract_and_scale(const T* source, Step step, int width, MeanAt mean_at, float scale, float* out) {
    for (int x = 0; x < width; ++x) out[x] = (static_cast<float>(source[x * step]) - mean_at(x)) * scale;
}

template <typename T, typename MeanAt>
ENGINE_INLINE void transform_row(const T* source, std::ptrdiff_t step, int width, MeanAt mean_at, float scale,
                                 float* out) {
    if (step == 1) {
        subtract_and_scale(source, Constant<1>{}, width, mean_at, scale, out);
    } else if (step == 3) {
        subtract_and_scale(source, Constant<3>{}, width, mean_at, scale, out);
    } else {
        subtract_and_scale(source, step, width, mean_at, scale, out);
    }
}

template <typename T>
ENGINE_INLINE void transform(const ImageView<T>& image, const CropWindow& window, const Mean& mean, float scale,
                             float* out) {
    for (int c = 0; c < image.channels; ++c) {
        const float channel_mean = mean.kind == Mean::Kind::channel ? mean.values[c] : 0.0f;
        for (int y = 0; y < window.height; ++y, out += window.width) {
            const int row = window.top + y;
            const T* source =
                image.data + c * image.channel_stride + row * image.row_stride + window.left * image.column_stride;
            if (mean.kind == Mean::Kind::image) {
                const std::ptrdiff_t line = static_cast<std::ptrdiff_t>(c) * image.height + row;
                const float* mean_row = mean.values + line * image.width + window.left;
                transform_row(
                    source, image.column_stride, window.width, [=](int x) { return mean_row[x]; }, scale, out);
            } else {
                transform_row(source, image.column_stride, window.width, [=](int) { return channel_mean; }, scale, out);
            }
            // Reversing the finished row while it is in the first-level cache is cheaper than loading backwards.
            if (window.mirror) std::reverse(out, out + window.width);
        }
    }
}

ENGINE_VECTORISED void transform_bytes(const ImageView<std::uint8_t>& image, const CropWindow& window, const Mean& mean,
                                       float scale, float* out) {
    transform(image, window, mean, scale, out);
}

ENGINE_VECTORISED void transform_floats(const ImageView<float>& image, const CropWindow& window, const Mean& mean,
                                        float scale, float* out) {
    transform(image, window, mean, scale, out);
}

}  // namespace

void transform_image(const ImageView<std::uint8_t>& image, const CropWindow& window, const Mean& mean, float scale,
                     float* out) {
    transform_bytes(image, window, mean, scale, out);
}

void transform_image(const ImageView<float>& image, const CropWindow& window, const Mean& mean, float scale,
                     float* out) {
    transform_floats(image, window, mean, scale, out);
}

}  // namespace engine
