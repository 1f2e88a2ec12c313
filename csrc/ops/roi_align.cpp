// Averages samples, interpolated bilinearly between pixels, of each cell of a grid over regions of interest (He et al.
// 2017, arXiv 1703.06870).
// inputs, outputs, further attributes: see region_grid.h; attributes: sampling_ratio (samples of a cell along each
// axis; 0: one for each pixel of its length, rounded up).
#include <algorithm>

#include "kernels/vectorised.h"
#include "ops/common/pixel_weights.h"
#include "ops/common/region_grid.h"

namespace engine {
namespace {

// Computes one cell of `lanes` channels that lie side by side.
ENGINE_VECTORISED static void average(const float* x, const CellWeights& rows, const CellWeights& columns,
                                      int64_t width, int64_t stride, int64_t lanes, float* y) {
    constexpr int64_t together = 8;
    x += (rows.first * width + columns.first) * stride;
    int64_t lane = 0;
    for (; lane + together <= lanes; lane += together) {
        float sums[together] = {};
        for (int64_t h = 0; h < rows.count; h++) {
            for (int64_t w = 0; w < columns.count; w++) {
                const float weight = rows.of[h] * columns.of[w];
                const float* const values = x + (h * width + w) * stride + lane;
#pragma omp simd
                for (int64_t l = 0; l < together; l++) sums[l] += weight * values[l];
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
            columns_[r].align(of[1] * scale_, of[3] * scale_, pooled_w_, ratio_, width_);
            rows_[r].align(of[2] * scale_, of[4] * scale_, pooled_h_, ratio_, height_);
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
            const CellWeights rows = rows_[r][cell / pooled_w_], columns = columns_[r][cell % pooled_w_];
            const float* const given = outputs_[0]->diff->data() + place(r, block, cell);
            for (int64_t h = 0; h < rows.count; h++) {
                for (int64_t w = 0; w < columns.count; w++) {
                    const float weight = rows.of[h] * columns.of[w];
                    float* const x = wanted(image_of_[r], block, (rows.first + h) * width_ + columns.first + w);
                    for (int64_t lane = 0; lane < to_.lanes; lane++) x[lane] += weight * given[lane];
                }
            }
        });
    }

private:
    int64_t ratio_;
    std::vector<PixelWeights> rows_, columns_;  // the pixels' weights in the cells of each region
};

static const RegisterOp<ROIAlign> registered("ROIAlign");

}  // namespace
}  // namespace engine
