// Decodes, transforms and changes pictures, for batches.
#include "bind.h"
#include "jpeg.h"
#include "kernels/image.h"
#include "kernels/picture.h"
#include "kernels/retouch.h"
#include "kernels/stage_times.h"

namespace engine {

template <typename T>
static ImageView<T> view_of(const py::array& pixels) {
    const auto stride = [&](int axis) { return std::ptrdiff_t(pixels.strides(axis) / py::ssize_t(sizeof(T))); };
    return {static_cast<const T*>(pixels.data()),
            int(pixels.shape(2)),
            int(pixels.shape(0)),
            int(pixels.shape(1)),
            stride(2),
            stride(0),
            stride(1)};
}

// Returns a mean from None or an array. values: receives the array, which must live as long as the Mean. Raises
// ValueError if the mean does not fit.
static Mean mean_of(const py::object& mean, py::ssize_t channels, py::ssize_t height, py::ssize_t width,
                    FloatArray& values) {
    if (mean.is_none()) return {Mean::Kind::none, nullptr};
    values = py::cast<FloatArray>(mean);
    const bool image = values.ndim() == 3;
    const bool fits = image ? values.shape(0) == channels && values.shape(1) == height && values.shape(2) == width
                            : values.size() == channels;
    if (!fits) throw py::value_error("the mean must be one value for each channel or of the image's size");
    return {image ? Mean::Kind::image : Mean::Kind::channel, values.data()};
}

// Transforms one image into its place in a batch. pixels: (H, W, C) of T, with any strides; out: (C, crop_h, crop_w),
// dense.
template <typename T>
static void transform_pixels(const py::array& pixels, const CropWindow& window, const Mean& mean, float scale,
                             float* out) {
    const ImageView<T> view = view_of<T>(pixels);
    py::gil_scoped_release release;
    transform_image(view, window, mean, scale, out);
}

static void transform(const py::array& pixels, int top, int left, int crop_h, int crop_w, bool mirror,
                      const py::object& mean, float scale, FloatArray out) {
    const bool inside = pixels.ndim() == 3 && top >= 0 && left >= 0 && crop_h >= 0 && crop_w >= 0 &&
                        top <= pixels.shape(0) - crop_h && left <= pixels.shape(1) - crop_w;
    if (!inside) throw py::value_error("the crop window must lie inside an image of three axes");
    if (out.size() != pixels.shape(2) * crop_h * crop_w)
        throw py::value_error("out must be (channels, crop_h, crop_w)");
    FloatArray values;
    const Mean subtract = mean_of(mean, pixels.shape(2), pixels.shape(0), pixels.shape(1), values);
    const CropWindow window{top, left, crop_h, crop_w, mirror};
    if (pixels.dtype().is(py::dtype::of<uint8_t>()))
        transform_pixels<uint8_t>(pixels, window, subtract, scale, out.mutable_data());
    else if (pixels.dtype().is(py::dtype::of<float>()))
        transform_pixels<float>(pixels, window, subtract, scale, out.mutable_data());
    else
        throw py::value_error("pixels must be uint8 or float32");
}

namespace {

using Header = std::tuple<int, int, int, int64_t>;
using Box = std::tuple<double, double, double, double>;
using Size = std::tuple<int, int>;
using Window = std::tuple<int, int, int, int, bool>;

// What to make of a picture of width x height. values: the array of target.mean.
struct Task {
    int width, height;
    Resizing resizing;
    CropWindow window;
    Target target;
    FloatArray values;
};

}  // namespace

// Returns the task that the arguments describe. Raises ValueError for those that do not fit together.
static Task task_of(int width, int height, const Box& box, const Size& size, int filter, const Window& window,
                    const py::object& mean, float scale, py::array& out) {
    Task task{width, height, {}, {}, {}, {}};
    const auto [left, top, right, bottom] = box;
    const auto [out_width, out_height] = size;
    const bool inside = 0 <= left && left < right && right <= width && 0 <= top && top < bottom && bottom <= height;
    if (!inside) throw py::value_error("the box must lie inside the picture");
    if (filter < 0 || filter > int(Filter::lanczos)) throw py::value_error("there is no such filter");
    task.resizing = {Filter(filter), left, top, right, bottom, out_width, out_height};
    const auto [row, column, rows, columns, mirror] = window;
    task.window = {row, column, rows, columns, mirror};
    if (row < 0 || column < 0 || rows < 1 || columns < 1 || row > int64_t(out_height) - rows ||
        column > int64_t(out_width) - columns)
        throw py::value_error("the crop window must lie inside the resized picture");
    const bool floats = out.dtype().is(py::dtype::of<float>());
    if (!(floats || out.dtype().is(py::dtype::of<uint8_t>())) || out.ndim() != 3 || !out.writeable() ||
        !(out.flags() & py::array::c_style))
        throw py::value_error("out must be float32 or uint8, of three axes, dense and writable");
    const int axis = floats ? 1 : 0;  // the axis of rows
    const py::ssize_t channels = out.shape(floats ? 0 : 2);
    if (out.shape(axis) != rows || out.shape(axis + 1) != columns || (channels != 1 && channels != 3))
        throw py::value_error("out must have the window's size and 1 or 3 channels");
    const Mean subtract = mean_of(mean, channels, out_height, out_width, task.values);
    task.target = {int(channels),
                   floats ? static_cast<float*>(out.mutable_data()) : nullptr,
                   floats ? nullptr : static_cast<uint8_t*>(out.mutable_data()),
                   subtract,
                   out_height,
                   out_width,
                   scale};
    return task;
}

// Makes `out` of a picture in memory, (H, W, 1 or 3) of uint8 with any strides: resizes, crops, mirrors it and so on.
static void fill_from_pixels(const py::array& pixels, const Box& box, const Size& size, int filter,
                             const Window& window, const py::object& mean, float scale, py::array out, bool plain) {
    if (pixels.ndim() != 3 || !pixels.dtype().is(py::dtype::of<uint8_t>()) ||
        (pixels.shape(2) != 1 && pixels.shape(2) != 3))
        throw py::value_error("pixels must be (height, width, 1 or 3) of uint8");
    const ImageView<uint8_t> view = view_of<uint8_t>(pixels);
    const Task task = task_of(view.width, view.height, box, size, filter, window, mean, scale, out);
    py::gil_scoped_release release;
    Resampler resampler(view.width, view.height, task.resizing, task.window, task.target,
                        view.channels > task.target.channels, plain);
    read_pixels(view, resampler.needed(), resampler);
}

// Does the same with a JPEG, which is decoded as far as it is needed. Returns false if it is damaged.
static bool fill_from_jpeg(const py::bytes& data, const Header& found, const Box& box, const Size& size, int filter,
                           const Window& window, const py::object& mean, float scale, py::array out, bool plain) {
    const auto [width, height, channels, scans] = found;
    const JpegHeader header{width, height, channels, scans};
    const Task task = task_of(width, height, box, size, filter, window, mean, scale, out);
    const std::string_view bytes = data;
    py::gil_scoped_release release;
    StageTimes& times = stage_times();
    const Stopwatch watch(times.decoding, times.resizing, times.finishing);
    const int shrink = shrink_for(task.resizing);
    Resizing resizing = task.resizing;
    resizing.left /= shrink, resizing.right /= shrink, resizing.top /= shrink, resizing.bottom /= shrink;
    Resampler resampler((width + shrink - 1) / shrink, (height + shrink - 1) / shrink, resizing, task.window,
                        task.target, channels > task.target.channels, plain);
    return read_jpeg(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), header, shrink, resampler.needed(),
                     resampler);
}

// Changes a picture in place. changes: (n, 7), the kind of each change and its numbers.
static void change_pixels(py::array pixels,
                          const py::array_t<double, py::array::c_style | py::array::forcecast>& changes) {
    if (pixels.ndim() != 3 || !pixels.dtype().is(py::dtype::of<uint8_t>()) || !pixels.writeable() ||
        !(pixels.flags() & py::array::c_style) || (pixels.shape(2) != 1 && pixels.shape(2) != 3) || !pixels.size())
        throw py::value_error("pixels must be (height, width, 1 or 3) of uint8, dense and writable");
    constexpr py::ssize_t columns = 1 + sizeof(Change::values) / sizeof(double);
    if (changes.ndim() != 2 || changes.shape(1) != columns) throw py::value_error("changes must be (n, 7)");
    std::vector<Change> wanted(std::size_t(changes.shape(0)));
    for (py::ssize_t i = 0; i < changes.shape(0); ++i) {
        const double* row = changes.data(i, 0);
        if (!(row[0] >= 0 && row[0] < Change::kinds)) throw py::value_error("there is no such change");
        wanted[std::size_t(i)].kind = Change::Kind(int(row[0]));
        std::copy(row + 1, row + columns, wanted[std::size_t(i)].values);
    }
    const auto at = static_cast<uint8_t*>(pixels.mutable_data());
    const int height = int(pixels.shape(0)), width = int(pixels.shape(1)), channels = int(pixels.shape(2));
    py::gil_scoped_release release;
    retouch(at, height, width, channels, wanted.data(), int(wanted.size()));
}

using PortionOf = std::tuple<float, int, int, int, int>;

// Mixes two pictures in place, both (C, H, W) of float32.
static void mix_pair(FloatArray first, FloatArray second, const PortionOf& of_first, const PortionOf& of_second) {
    if (first.ndim() != 3 || second.ndim() != 3 || !std::equal(first.shape(), first.shape() + 3, second.shape()))
        throw py::value_error("two pictures of one shape (channels, height, width) are mixed");
    const auto portion = [](const PortionOf& p) {
        const auto [share, top, left, height, width] = p;
        return Portion{share, top, left, height, width};
    };
    float *const a = first.mutable_data(), *const b = second.mutable_data();
    const int channels = int(first.shape(0)), height = int(first.shape(1)), width = int(first.shape(2));
    py::gil_scoped_release release;
    mix(a, b, channels, height, width, portion(of_first), portion(of_second));
}

static std::optional<Header> header_of(const py::bytes& data) {
    const std::string_view bytes = data;
    const auto header = jpeg_header(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    if (!header) return {};
    return Header{header->width, header->height, header->channels, header->scans};
}

static int64_t scans_of(const py::bytes& data) {
    const std::string_view bytes = data;
    return jpeg_scans(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

void bind_image(py::module_& m) {
    m.def("transform_image", &transform, "pixels"_a, "top"_a, "left"_a, "crop_h"_a, "crop_w"_a, "mirror"_a,
          "mean"_a.none(true), "scale"_a, "out"_a.noconvert(),
          "Writes the crop window of pixels (H, W, C), uint8 or float32, to out, float32 (C, crop_h, crop_w), as "
          "(pixel - mean) * scale.\n\n"
          "Args:\n"
          "    mean: one value for each channel, (C, H, W), or None.\n\n"
          "Raises ValueError if the arguments do not fit together.");
    m.def("measure_stages", &measure_stages, "on"_a, "Begins or stops measuring what stage_times() returns.");
    m.def(
        "stage_times",
        [] {
            const StageTimes& times = stage_times();
            return std::make_tuple(times.decoding, times.resizing, times.finishing);
        },
        "Returns the nanoseconds that the calling thread has spent on decoding, resizing and writing pictures.");
    m.def("retouch", &change_pixels, "pixels"_a.noconvert(), "changes"_a,
          "Changes a picture, uint8 (H, W, 1 or 3), in place. changes: (n, 7), the kind of each change (see "
          "kernels/retouch.h) and its numbers. Raises ValueError if the arguments do not fit.");
    m.def("mix", &mix_pair, "first"_a.noconvert(), "second"_a.noconvert(), "of_first"_a, "of_second"_a,
          "Makes two pictures, float32 (C, H, W), take portions of each other, as they were before, in place.\n\n"
          "Args:\n"
          "    of_first: the portion that the first takes: (share, top, left, height, width), a share of the pixels in "
          "a rectangle.\n"
          "    of_second: the portion that the second takes.\n\n"
          "Raises ValueError if their shapes differ.");
    m.def(
        "load_jpeg_library", &load_jpeg_library, "path"_a,
        "Loads libjpeg's functions from a library, or from an extension that is linked with it. Returns \"\", or what "
        "is missing: JPEGs cannot be read then.");
    m.def("jpeg_header", &header_of, "data"_a,
          "Returns (width, height, channels, scans) of a JPEG that fill_from_jpeg() can read; None for others.");
    m.def("jpeg_scans", &scans_of, "data"_a, "Returns how many scans a JPEG has.");
    m.def("fill_from_pixels", &fill_from_pixels, "pixels"_a, "box"_a, "size"_a, "filter"_a, "window"_a,
          "mean"_a.none(true), "scale"_a, "out"_a.noconvert(), "plain"_a = false,
          "Resizes, crops and mirrors a picture, uint8 (H, W, 1 or 3), and writes it to out.\n\n"
          "Args:\n"
          "    box: (left, top, right, bottom) of what is resized, in pixels and fractions of them.\n"
          "    size: (width, height) of the result of resizing.\n"
          "    filter: a number of the enum Filter in kernels/resize_rows.h.\n"
          "    window: (row, column, rows, columns, mirror) of what is written of that result.\n"
          "    mean: one value for each channel, (C, height, width) in that size, or None.\n"
          "    scale: the factor of pixel - mean.\n"
          "    out: float32 (1 or 3, rows, columns), or uint8 (rows, columns, 1 or 3), for which mean and scale do not "
          "count.\n"
          "    plain: whether to use no special instructions of this processor; a test compares the two.\n\n"
          "Raises ValueError if the arguments do not fit together.");
    m.def("fill_from_jpeg", &fill_from_jpeg, "data"_a, "header"_a, "box"_a, "size"_a, "filter"_a, "window"_a,
          "mean"_a.none(true), "scale"_a, "out"_a.noconvert(), "plain"_a = false,
          "Does what fill_from_pixels() does with a JPEG, of which it decodes only what it needs. header: what "
          "jpeg_header() has returned. Returns False if the data is damaged.");
}

}  // namespace engine
