// The average over each cell of a grid laid over regions of interest, of samples interpolated bilinearly between pixels
// (He et al. 2017, arXiv 1703.06870). inputs: features (N, C, H, W), rois (R, 5), row-major; output: (R, C, pooled_h,
// pooled_w), laid out as the features; attributes: spatial_scale, from the regions' pixels to those of the features;
// sampling_ratio, samples of a cell along each axis (0: one for each pixel that it is long, rounded up).
#include <algorithm>
#include <cmath>

#include "kernels/vectorised.h"
#include "kernels/whole.h"
#include "ops/common/channel_layout.h"
#include "ops/common/parts.h"
#include "ops/common/rois.h"

namespace engine {
namespace {

// The pixels along one axis that a cell takes, and how much of each.
struct Share {
    int64_t first, count;
    const float* of;
};

// Those of all cells of a region. A sample is a product of its row's and its column's, and so is their average.
class Shares {
public:
    // begin, end: of the region, in pixels of the features, of which there are `pixels`.
    void set(float begin, float end, int64_t cells, int64_t ratio, int64_t pixels) {
        cells_.assign(cells, {});
        values_.clear();
        const float size = std::max(end - begin, 1.f), length = size / float(cells);
        if (!std::isfinite(begin) || !std::isfinite(size)) return;
        const float samples = ratio > 0 ? float(ratio) : std::ceil(length);
        for (int64_t i = 0; i < cells; i++) {
            const float from = begin + float(i) * length;
            // Only samples near the features are looked at: a region that is far too large has too many.
            const auto number = [&](int64_t pixel) { return (float(pixel) - from) / (length / samples); };
            const int64_t first = whole(std::clamp(number(-2), 0.f, samples));
            const int64_t last = whole(std::clamp(number(pixels + 1) + 1, 0.f, samples));
            cells_[i].offset = int64_t(values_.size());
            for (int64_t sample = first; sample < last; sample++)
                add(cells_[i], from + (float(sample) + 0.5f) * length / samples, 1 / samples, pixels);
        }
    }

    Share operator[](int64_t cell) const {
        const Cell& found = cells_[cell];
        return {found.first, found.count, values_.data() + found.offset};
    }

private:
    struct Cell {
        int64_t first, count, offset;
    };

    // Up to one pixel outside a sample has the value of the border, beyond that none.
    void add(Cell& cell, float at, float weight, int64_t pixels) {
        if (!(at >= -1 && at <= float(pixels))) return;
        at = std::clamp(at, 0.f, float(pixels - 1));
        const int64_t low = whole(at), high = std::min(low + 1, pixels - 1);
        if (cell.count == 0) cell.first = low;
        for (; cell.first + cell.count <= high; cell.count++) values_.push_back(0);
        float* const of = values_.data() + cell.offset - cell.first;
        of[low] += weight * (1 - (at - float(low)));
        of[high] += weight * (at - float(low));
    }

    std::vector<Cell> cells_;
    std::vector<float> values_;
};

// One cell of channels that lie side by side.
ENGINE_VECTORISED static void average(const float* x, const Share& rows, const Share& columns, int64_t width,
                                      int64_t stride, int64_t lanes, float* y) {
    constexpr int64_t together = 8;
    x += (rows.first * width + columns.first) * stride;
    int64_t lane = 0;
    for (; lane + together <= lanes; lane += together) {
        float sums[together] = {};
        for (int64_t h = 0; h < rows.count; h++) {
            for (int64_t w = 0; w < columns.count; w++) {
                const float share = rows.of[h] * columns.of[w];
                const float* const values = x + (h * width + w) * stride + lane;
#pragma omp simd
                for (int64_t l = 0; l < together; l++) sums[l] += share * values[l];
            }
        }
        std::copy_n(sums, together, y + lane);
    }
    for (; lane < lanes; lane++) {
        float sum = 0;
        for (int64_t h = 0; h < rows.count; h++)
            for (int64_t w = 0; w < columns.count; w++)
                sum += rows.of[h] * columns.of[w] * x[(h * width + w) * stride + lane];
        y[lane] = sum;
    }
}

class ROIAlign : public Op {
public:
    explicit ROIAlign(OpSpec spec)
        : Op(std::move(spec)),
          scale_(float(spec_.attributes.real("spatial_scale"))),
          ratio_(spec_.attributes.integer("sampling_ratio")) {
        const Dims &in = input(0)->shape, &out = spec_.output_shapes[0];
        images_ = in[0];
        height_ = in[2];
        width_ = in[3];
        rois_ = out[0];
        pooled_h_ = out[2];
        pooled_w_ = out[3];
        image_of_.resize(rois_);
        rows_.resize(rois_);
        columns_.resize(rois_);
        const TensorPtr y = output(0, layout_like(input(0)->layout, out, memory::data_type::f32));
        const BottomAndTop rows = rows_of_both(input(0)->layout, y->layout);
        from_ = rows.bottom;
        to_ = rows.top;
        touch(Pass::forward, {input(0), input(1), y});
        if (input_gradient(0) && output_gradient(0)) touch(Pass::backward, {y->diff, input(0)->diff});
    }

    void forward(const dnnl::stream&) override {
        const float* const rois = input(1)->data();
        for (int64_t r = 0; r < rois_; r++) image_of_[r] = roi_image(spec_, rois, r, images_);
#pragma omp parallel for
        for (int64_t r = 0; r < rois_; r++) {
            const float* const roi = rois + r * roi_columns;
            columns_[r].set(roi[1] * scale_, roi[3] * scale_, pooled_w_, ratio_, width_);
            rows_[r].set(roi[2] * scale_, roi[4] * scale_, pooled_h_, ratio_, height_);
        }
        const int64_t blocks = to_.blocks();
#pragma omp parallel for collapse(2)
        for (int64_t r = 0; r < rois_; r++) {
            for (int64_t block = 0; block < blocks; block++) {
                for (int64_t cell = 0; cell < pooled_h_ * pooled_w_; cell++) {
                    float* const y = outputs_[0]->data() + to_.offset(r, block) + cell * to_.inner_stride;
                    if (image_of_[r] < 0) {
                        std::fill_n(y, to_.lanes, 0.f);
                    } else {
                        const float* const x = input(0)->data() + from_.offset(image_of_[r], block);
                        average(x, rows_[r][cell / pooled_w_], columns_[r][cell % pooled_w_], width_,
                                from_.inner_stride, from_.lanes, y);
                    }
                }
            }
        }
    }

    // A block of channels belongs to one thread: regions overlap, and their gradients add.
    void backward(const dnnl::stream&) override {
        const int64_t pixels = height_ * width_, blocks = to_.blocks();
#pragma omp parallel for
        for (int64_t block = 0; block < blocks; block++) {
            for (int64_t n = 0; n < images_; n++)
                for (int64_t pixel = 0; pixel < pixels; pixel++) std::fill_n(wanted(n, block, pixel), from_.lanes, 0.f);
            for (int64_t r = 0; r < rois_; r++)
                for (int64_t cell = 0; cell < pooled_h_ * pooled_w_ && image_of_[r] >= 0; cell++)
                    spread(r, block, cell);
        }
    }

private:
    float* wanted(int64_t n, int64_t block, int64_t pixel) const {
        return input(0)->diff->data() + from_.offset(n, block) + pixel * from_.inner_stride;
    }

    void spread(int64_t r, int64_t block, int64_t cell) const {
        const Share rows = rows_[r][cell / pooled_w_], columns = columns_[r][cell % pooled_w_];
        const float* const given = outputs_[0]->diff->data() + to_.offset(r, block) + cell * to_.inner_stride;
        for (int64_t h = 0; h < rows.count; h++) {
            for (int64_t w = 0; w < columns.count; w++) {
                const float share = rows.of[h] * columns.of[w];
                float* const x = wanted(image_of_[r], block, (rows.first + h) * width_ + columns.first + w);
                for (int64_t lane = 0; lane < to_.lanes; lane++) x[lane] += share * given[lane];
            }
        }
    }

    float scale_;
    int64_t ratio_, images_, height_, width_, rois_, pooled_h_, pooled_w_;
    ChannelRows from_{}, to_{};           // features and top: the same lanes
    std::vector<int64_t> image_of_;       // every region's
    std::vector<Shares> rows_, columns_;  // of pixels in every region's cells
};

static const RegisterOp<ROIAlign> registered("ROIAlign");

}  // namespace
}  // namespace engine
