// Changes pictures at random for NVIDIA's DetectNet, and computes what the net is to predict for each square of a grid
// over them. It has no backward.
// inputs: images (N, 3, H, W), blue first, 0 to 255; labels (N, rows of 16): the number of boxes and 16, then boxes of
// x, y, width, height, angle, class, scenario, rotation, truncated, ...; both float32, row-major; outputs: images (N,
// 3, y, x); grids (N, 8 + classes, y / stride, x / stride): foreground, the box's x1, y1, x2, y2 minus the square's own
// corner, 1 / width, 1 / height, norm, and the coverage of each class; attributes: train; means (3); sources and
// targets (the classes of labels, and the coverage that each is); stride, scale_cvg, gridbox_min, max_cvg_len,
// min_cvg_len, obj_norm, crop_bboxes; the fields of DetectNetAugmentationParameter.
#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <stdexcept>

#include "kernels/dropout_mask.h"
#include "kernels/whole.h"
#include "ops/common/onednn_util.h"

namespace engine {
namespace {

constexpr int64_t label_size = 16, fixed_channels = 8;

struct Rectangle {
    double x, y, width, height;
    double area() const { return width * height; }
    Rectangle within(const Rectangle& other) const {
        const double left = std::max(x, other.x), top = std::max(y, other.y);
        const double right = std::min(x + width, other.x + other.width);
        const double bottom = std::min(y + height, other.y + other.height);
        return right > left && bottom > top ? Rectangle{left, top, right - left, bottom - top} : Rectangle{0, 0, 0, 0};
    }
};

// The changes that are made to a picture: drawn at random, or in a test none but to scale it to the top's size.
struct Changes {
    double hue = 0, saturation = 1, degrees = 0;
    bool flips = false;
    int64_t width, height;      // scaled
    int64_t left = 0, top = 0;  // of the crop
};

// Three planes, one after the other.
struct Picture {
    std::vector<float> pixels;
    int64_t width = 0, height = 0;
    float* plane(int64_t c) { return pixels.data() + c * width * height; }
    void resize(int64_t w, int64_t h) {
        width = w;
        height = h;
        pixels.resize(3 * w * h);
    }
};

// A rotation around the middle of a picture, and the frame that holds all of the rotated picture. forth() turns a point
// of the picture into one of the frame, back() the other way round.
struct Rotation {
    Rotation(int64_t width, int64_t height, double degrees)
        : cosine(std::cos(degrees * M_PI / 180)), sine(std::sin(degrees * M_PI / 180)) {
        const double x = double(width) / 2, y = double(height) / 2;
        const double half_width = std::abs(x * cosine) + std::abs(y * sine);
        const double half_height = std::abs(x * sine) + std::abs(y * cosine);
        left = std::floor(x - half_width);
        top = std::floor(y - half_height);
        // OpenCV's bounding rectangle of a rotated one holds one pixel more.
        frame_width = whole(std::ceil(x + half_width) - left) + 1;
        frame_height = whole(std::ceil(y + half_height) - top) + 1;
        center_x = x;
        center_y = y;
    }
    void forth(double& x, double& y) const {
        const double from_x = x - center_x, from_y = y - center_y;
        x = cosine * from_x - sine * from_y + center_x - left;
        y = sine * from_x + cosine * from_y + center_y - top;
    }
    void back(double& x, double& y) const {
        const double from_x = x + left - center_x, from_y = y + top - center_y;
        x = cosine * from_x + sine * from_y + center_x;
        y = cosine * from_y - sine * from_x + center_y;
    }
    double cosine, sine, left, top, center_x, center_y;
    int64_t frame_width, frame_height;
};

// Returns the weights of the four pixels around a place, x behind the second: cubic convolution with a = -3/4.
std::array<float, 4> cubic(double x) {
    constexpr double a = -0.75;
    const auto near = [](double d) { return ((a + 2) * d - (a + 3)) * d * d + 1; };
    const double first = ((a * (x + 1) - 5 * a) * (x + 1) + 8 * a) * (x + 1) - 4 * a;
    const double second = near(x), third = near(1 - x);
    return {float(first), float(second), float(third), float(1 - first - second - third)};
}

// Turns the hue of a pixel, whose colours are in [0, 1], by degrees, and multiplies its saturation.
void turn_colours(float& blue, float& green, float& red, double degrees, double saturation) {
    const double most = std::max({blue, green, red}), range = most - std::min({blue, green, red});
    if (!std::isfinite(range)) return;  // the pixel stays as it is
    const double unit = 60 / (range + FLT_EPSILON);
    double hue = most == red     ? (green - blue) * unit
                 : most == green ? 120 + (blue - red) * unit
                                 : 240 + (red - green) * unit;
    hue = std::fmod(hue + degrees + 720, 360) / 60;
    const double share = range / (most + FLT_EPSILON) * saturation;
    const auto sector = whole(std::floor(hue)) % 6;
    const double rest = hue - std::floor(hue);
    const double low = most * (1 - share), falling = most * (1 - share * rest),
                 rising = most * (1 - share * (1 - rest));
    const double values[6][3] = {{low, rising, most},  {low, most, falling}, {rising, most, low},
                                 {most, falling, low}, {most, low, rising},  {falling, low, most}};
    blue = float(values[sector][0]);
    green = float(values[sector][1]);
    red = float(values[sector][2]);
}

class DetectNetTransformation : public Op {
public:
    explicit DetectNetTransformation(OpSpec spec) : Op(std::move(spec)), key_(spec_.name) {
        const Dims &in = input(0)->shape, &out = spec_.output_shapes[0], &grid = spec_.output_shapes[1];
        samples_ = in[0];
        height_ = in[2];
        width_ = in[3];
        top_height_ = out[2];
        top_width_ = out[3];
        channels_ = grid[1];
        rows_ = grid[2];
        columns_ = grid[3];
        label_count_ = input(1)->count() / samples_;
        const Attributes& attributes = spec_.attributes;
        train_ = attributes.flag("train");
        stride_ = attributes.real("stride");
        sources_ = attributes.integers("sources");
        targets_ = attributes.integers("targets");
        reserve();
        touch(Pass::forward, output(0, plain_layout(out)));
        touch(Pass::forward, output(1, plain_layout(grid)));
        touch(Pass::forward, {input(0), input(1)});
    }

    void forward(const dnnl::stream&) override {
        for (int64_t n = 0; n < samples_; n++) {
            const Changes changes = choose(n);
            change_picture(n, changes);
            change_labels(n, changes);
        }
    }

private:
    double real(const char* name) const { return spec_.attributes.real(name); }

    // Reserves memory for the largest picture that a change can make.
    void reserve() {
        const double scale = train_ ? std::max(1., real("scale_max")) : 1;
        const auto width = std::max(whole(std::ceil(scale * double(width_))), top_width_) + 1;
        const auto height = std::max(whole(std::ceil(scale * double(height_))), top_height_) + 1;
        const double degrees = train_ && real("rotation_prob") > 0 ? std::abs(real("max_rotate_degree")) : 0;
        const double most = degrees == 0 ? 0 : std::sin(std::min(degrees, 90.) * M_PI / 180);
        const auto across = whole(double(width) + most * double(height)) + 4;
        const auto down = whole(double(height) + most * double(width)) + 4;
        for (Picture* picture : {&first_, &second_}) picture->pixels.reserve(3 * across * down);
        const int64_t wide = std::max(width, top_width_), high = std::max(height, top_height_);
        weights_.reserve(wide + high);
        starts_.reserve(wide + high);
    }

    // Draws the changes of picture n.
    Changes choose(int64_t n) const {
        Changes changes;
        changes.width = top_width_;
        changes.height = top_height_;
        if (!train_) return changes;
        const Counter& counter = *spec_.counter;
        const DropoutMask random = key_.of(counter.seed, counter.step, counter.first_sample + uint64_t(n));
        uint32_t drawn = 0;
        const auto chance = [&] { return double(random.uniform(drawn++)); };
        const auto happens = [&](const char* probability) { return chance() < real(probability); };
        changes.width = width_;
        changes.height = height_;
        if (happens("hue_rotation_prob"))
            changes.hue = std::clamp((2 * chance() - 1) * real("hue_rotation"), -180., 180.);
        if (happens("desaturation_prob")) changes.saturation = 1 - chance() * real("desaturation_max");
        changes.flips = happens("flip_prob");
        if (happens("scale_prob")) {
            const double scale = real("scale_min") + (real("scale_max") - real("scale_min")) * chance();
            changes.width = std::max<int64_t>(1, std::llround(double(width_) * scale));
            changes.height = std::max<int64_t>(1, std::llround(double(height_) * scale));
        }
        if (happens("rotation_prob")) changes.degrees = (2 * chance() - 1) * real("max_rotate_degree");
        int64_t width = changes.width, height = changes.height;
        if (changes.degrees != 0) {
            const Rotation rotation(width, height, changes.degrees);
            width = rotation.frame_width;
            height = rotation.frame_height;
        }
        const bool anywhere = happens("crop_prob");
        const auto offset = [&](int64_t room, const char* name) {
            const int64_t shift = anywhere ? spec_.attributes.integer(name) : 0;
            const double share = anywhere ? chance() : 0.5;
            return whole(std::round(share * double(room + shift) - double(shift / 2)));
        };
        changes.left = offset(width - top_width_, "shift_x");
        changes.top = offset(height - top_height_, "shift_y");
        return changes;
    }

    void change_picture(int64_t n, const Changes& changes) {
        colour(n, changes);
        Picture *now = &first_, *next = &second_;
        if (changes.width != now->width || changes.height != now->height) {
            scale(*now, *next, changes.width, changes.height);
            std::swap(now, next);
        }
        if (changes.degrees != 0) {
            rotate(*now, *next, changes.degrees);
            std::swap(now, next);
        }
        for (int64_t c = 0; c < 3; c++)
            for (int64_t row = 0; row < top_height_; row++) {
                float* const y = outputs_[0]->data() + ((n * 3 + c) * top_height_ + row) * top_width_;
                std::fill_n(y, top_width_, 0.f);
                const int64_t from = row + changes.top;
                if (from < 0 || from >= now->height) continue;
                const int64_t begin = std::max<int64_t>(0, -changes.left);
                const int64_t end = std::min(top_width_, now->width - changes.left);
                const float* const x = now->plane(c) + from * now->width + changes.left;
                for (int64_t i = begin; i < end; i++) y[i] = x[i] * 255;
            }
    }

    // Sets first_ to picture n, divided by 255, less the mean, with its colours changed, and mirrored if it flips.
    void colour(int64_t n, const Changes& changes) {
        const std::vector<double> means = spec_.attributes.reals("means");
        first_.resize(width_, height_);
        const int64_t plane = width_ * height_;
        const float* const x = input(0)->data() + n * 3 * plane;
        const bool turns = changes.hue != 0 || changes.saturation != 1;
#pragma omp parallel for schedule(static)
        for (int64_t row = 0; row < height_; row++)
            for (int64_t i = 0; i < width_; i++) {
                const int64_t from = row * width_ + i, to = changes.flips ? row * width_ + width_ - 1 - i : from;
                float pixel[3] = {x[from] / 255, x[plane + from] / 255, x[2 * plane + from] / 255};
                if (turns) turn_colours(pixel[0], pixel[1], pixel[2], changes.hue, changes.saturation);
                for (int64_t c = 0; c < 3; c++) first_.plane(c)[to] = pixel[c] - float(means[c] / 255);
            }
    }

    void scale(Picture& from, Picture& to, int64_t width, int64_t height) {
        to.resize(width, height);
        weights_.clear();
        starts_.clear();
        for (const auto& [size, wanted] : {std::pair(from.width, width), std::pair(from.height, height)})
            for (int64_t i = 0; i < wanted; i++) {
                const double place = (double(i) + 0.5) * double(size) / double(wanted) - 0.5;
                starts_.push_back(whole(std::floor(place)) - 1);
                weights_.push_back(cubic(place - std::floor(place)));
            }
#pragma omp parallel for collapse(2) schedule(static)
        for (int64_t c = 0; c < 3; c++)
            for (int64_t row = 0; row < height; row++) {
                const float* const x = from.plane(c);
                float* const y = to.plane(c) + row * width;
                for (int64_t i = 0; i < width; i++) {
                    float sum = 0;
                    for (int64_t u = 0; u < 4; u++) {
                        const int64_t line = std::clamp<int64_t>(starts_[width + row] + u, 0, from.height - 1);
                        float across = 0;
                        for (int64_t v = 0; v < 4; v++)
                            across += weights_[i][v] *
                                      x[line * from.width + std::clamp<int64_t>(starts_[i] + v, 0, from.width - 1)];
                        sum += weights_[width + row][u] * across;
                    }
                    y[i] = sum;
                }
            }
    }

    static void rotate(Picture& from, Picture& to, double degrees) {
        const Rotation rotation(from.width, from.height, degrees);
        to.resize(rotation.frame_width, rotation.frame_height);
#pragma omp parallel for collapse(2) schedule(static)
        for (int64_t c = 0; c < 3; c++)
            for (int64_t row = 0; row < to.height; row++)
                for (int64_t i = 0; i < to.width; i++) {
                    double x = double(i), y = double(row);
                    rotation.back(x, y);
                    const auto left = whole(std::floor(x)), up = whole(std::floor(y));
                    float& pixel = to.plane(c)[row * to.width + i];
                    pixel = 0;
                    if (left < 0 || up < 0 || left + 1 >= from.width || up + 1 >= from.height) continue;
                    const float* const at = from.plane(c) + up * from.width + left;
                    const auto across = float(x - double(left)), down = float(y - double(up));
                    pixel = (1 - down) * ((1 - across) * at[0] + across * at[1]) +
                            down * ((1 - across) * at[from.width] + across * at[from.width + 1]);
                }
    }

    void change_labels(int64_t n, const Changes& changes) const {
        const float* const labels = input(1)->data() + n * label_count_;
        const float boxes = labels[0];
        if (!(boxes >= 0 && (boxes + 1) * label_size <= float(label_count_)) || (boxes > 0 && labels[1] != label_size))
            throw std::runtime_error("layer '" + spec_.name + "': sample " + std::to_string(n) +
                                     " has labels that are not DetectNet's: expected the number of boxes, 16, and as "
                                     "many rows of 16");
        float* const grid = outputs_[1]->data() + n * channels_ * rows_ * columns_;
        std::fill_n(grid, channels_ * rows_ * columns_, 0.f);
        for (int64_t i = 1; i <= whole(boxes); i++) {
            const float* const label = labels + i * label_size;
            Rectangle box{label[0], label[1], label[2], label[3]};
            if (changes.flips) box.x = double(width_) - box.x - box.width - 1;
            const double x = double(changes.width) / double(width_), y = double(changes.height) / double(height_);
            box = {box.x * x, box.y * y, box.width * x, box.height * y};
            if (changes.degrees != 0) {
                double center_x = box.x + box.width / 2, center_y = box.y + box.height / 2;
                Rotation(changes.width, changes.height, changes.degrees).forth(center_x, center_y);
                box.x = center_x - box.width / 2;
                box.y = center_y - box.height / 2;
            }
            box.x -= double(changes.left);
            box.y -= double(changes.top);
            if (spec_.attributes.flag("crop_bboxes")) box = box.within({0, 0, double(top_width_), double(top_height_)});
            const auto known = std::find(sources_.begin(), sources_.end(), whole(label[5]));
            if (known == sources_.end() || box.area() < FLT_EPSILON) continue;
            cover(grid, box, targets_[known - sources_.begin()]);
        }
    }

    // Returns the inner rectangle of a box: the squares that it covers predict the box.
    Rectangle shrunk(const Rectangle& box) const {
        double size[2] = {box.width * real("scale_cvg"), box.height * real("scale_cvg")};
        const double whole[2] = {box.width, box.height};
        for (int axis = 0; axis < 2; axis++)
            size[axis] = spec_.attributes.flag("gridbox_min")
                             ? std::min(whole[axis], std::max(real("min_cvg_len"), size[axis]))
                             : std::min(real("max_cvg_len"), size[axis]);
        return {box.x + (box.width - size[0]) / 2, box.y + (box.height - size[1]) / 2, size[0], size[1]};
    }

    // Sets the squares of a grid that a box's inner rectangle covers.
    void cover(float* grid, const Rectangle& box, int64_t target) const {
        const Rectangle region = shrunk(box);
        const double square = stride_ * stride_;
        const double norm = std::max(spec_.attributes.flag("obj_norm") ? 0. : 1., square / region.area());
        const auto clamped = [](double value, int64_t most) { return std::clamp<int64_t>(whole(value), 0, most); };
        const int64_t left = clamped(std::floor(region.x / stride_), columns_);
        const int64_t right = clamped(std::ceil((region.x + region.width) / stride_), columns_);
        const int64_t top = clamped(std::floor(region.y / stride_), rows_);
        const int64_t bottom = clamped(std::ceil((region.y + region.height) / stride_), rows_);
        for (int64_t row = top; row < bottom; row++)
            for (int64_t column = left; column < right; column++) {
                const double x = double(column) * stride_, y = double(row) * stride_;
                if (!(region.within({x, y, stride_, stride_}).area() / square > FLT_EPSILON)) continue;
                const double values[fixed_channels] = {1,
                                                       box.x - x,
                                                       box.y - y,
                                                       box.x + box.width - x,
                                                       box.y + box.height - y,
                                                       1 / box.width,
                                                       1 / box.height,
                                                       norm};
                float* const at = grid + row * columns_ + column;
                for (int64_t c = 0; c < channels_; c++)
                    at[c * rows_ * columns_] =
                        c < fixed_channels ? float(values[c]) : float(c == fixed_channels + target);
            }
    }

    DropoutMasks key_;
    int64_t samples_, height_, width_, top_height_, top_width_, channels_, rows_, columns_, label_count_;
    bool train_;
    double stride_;
    Dims sources_, targets_;
    Picture first_, second_;  // each change reads one and writes the other
    std::vector<std::array<float, 4>> weights_;
    std::vector<int64_t> starts_;
};

static const RegisterOp<DetectNetTransformation> registered("DetectNetTransformation");

}  // namespace
}  // namespace engine
