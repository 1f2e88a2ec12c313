// The average over each cell of a grid laid over regions of interest, of samples interpolated bilinearly between pixels
// (He et al. 2017, arXiv 1703.06870). inputs and output: region_grid.h; attributes: spatial_scale; sampling_ratio,
// samples of a cell along each axis (0: one for each pixel that it is long, rounded up).
#include <algorithm>
#include <cmath>

#include "kernels/vectorised.h"
#include "kernels/whole.h"
#include "ops/common/region_grid.h"

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

class ROIAlign : public RegionGrid {
public:
    explicit ROIAlign(OpSpec spec)
        : RegionGrid(std::move(spec)),
          ratio_(spec_.attributes.integer("sampling_ratio")),
          rows_(rois_),
          columns_(rois_) {}

    void forward(const dnnl::stream&) override {
        find_images();
#pragma omp parallel for
        for (int64_t r = 0; r < rois_; r++) {
            const float* const of = roi(r);
            columns_[r].set(of[1] * scale_, of[3] * scale_, pooled_w_, ratio_, width_);
            rows_[r].set(of[2] * scale_, of[4] * scale_, pooled_h_, ratio_, height_);
        }
        for_cells([&](int64_t r, int64_t block, int64_t cell) {
            float* const y = outputs_[0]->data() + place(r, block, cell);
            if (image_of_[r] < 0) {
                std::fill_n(y, to_.lanes, 0.f);
            } else {
                const float* const x = input(0)->data() + from_.offset(image_of_[r], block);
                average(x, rows_[r][cell / pooled_w_], columns_[r][cell % pooled_w_], width_, from_.inner_stride,
                        from_.lanes, y);
            }
        });
    }

    void backward(const dnnl::stream&) override {
        add_cells([&](int64_t r, int64_t block, int64_t cell) {
            const Share rows = rows_[r][cell / pooled_w_], columns = columns_[r][cell % pooled_w_];
            const float* const given = outputs_[0]->diff->data() + place(r, block, cell);
            for (int64_t h = 0; h < rows.count; h++) {
                for (int64_t w = 0; w < columns.count; w++) {
                    const float share = rows.of[h] * columns.of[w];
                    float* const x = wanted(image_of_[r], block, (rows.first + h) * width_ + columns.first + w);
                    for (int64_t lane = 0; lane < to_.lanes; lane++) x[lane] += share * given[lane];
                }
            }
        });
    }

private:
    int64_t ratio_;
    std::vector<Shares> rows_, columns_;  // of pixels in every region's cells
};

static const RegisterOp<ROIAlign> registered("ROIAlign");

}  // namespace
}  // namespace engine
