// Pictures into batches.
#include "bind.h"
#include "kernels/image.h"

namespace engine {

// One image into one slot of a batch. pixels: (H, W, C) of uint8 or float32 with any strides; out: (C, crop_h, crop_w),
// dense.
template <typename T>
static void transform_pixels(const py::array& pixels, const CropWindow& window, const Mean& mean, float scale,
                             float* out) {
    const auto stride = [&](int axis) { return std::ptrdiff_t(pixels.strides(axis) / py::ssize_t(sizeof(T))); };
    const ImageView<T> view{static_cast<const T*>(pixels.data()),
                            int(pixels.shape(2)),
                            int(pixels.shape(0)),
                            int(pixels.shape(1)),
                            stride(2),
                            stride(0),
                            stride(1)};
    py::gil_scoped_release release;
    transform_image(view, window, mean, scale, out);
}

static void transform(const py::array& pixels, int top, int left, int crop_h, int crop_w, bool mirror,
                      const py::object& mean, float scale, FloatArray out) {
    const bool inside = pixels.ndim() == 3 && top >= 0 && left >= 0 && top + crop_h <= pixels.shape(0) &&
                        left + crop_w <= pixels.shape(1);
    if (!inside) throw py::value_error("the crop window must lie inside an image of three axes");
    if (out.size() != pixels.shape(2) * crop_h * crop_w)
        throw py::value_error("out must be (channels, crop_h, crop_w)");
    Mean subtract{Mean::Kind::kNone, nullptr};
    FloatArray values;
    if (!mean.is_none()) {
        values = py::cast<FloatArray>(mean);
        const bool image = values.ndim() == 3;
        const bool fits = image ? values.shape(0) == pixels.shape(2) && values.shape(1) == pixels.shape(0) &&
                                      values.shape(2) == pixels.shape(1)
                                : values.size() == pixels.shape(2);
        if (!fits) throw py::value_error("the mean must be one value for each channel or of the image's size");
        subtract = {image ? Mean::Kind::kImage : Mean::Kind::kChannel, values.data()};
    }
    const CropWindow window{top, left, crop_h, crop_w, mirror};
    if (pixels.dtype().is(py::dtype::of<uint8_t>()))
        transform_pixels<uint8_t>(pixels, window, subtract, scale, out.mutable_data());
    else if (pixels.dtype().is(py::dtype::of<float>()))
        transform_pixels<float>(pixels, window, subtract, scale, out.mutable_data());
    else
        throw py::value_error("pixels must be uint8 or float32");
}

void bind_image(py::module_& m) {
    m.def("transform_image", &transform, "pixels"_a, "top"_a, "left"_a, "crop_h"_a, "crop_w"_a, "mirror"_a,
          "mean"_a.none(true), "scale"_a, "out"_a.noconvert());
}

}  // namespace engine
