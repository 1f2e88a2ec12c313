// Averages samples, interpolated bilinearly between pixels, of each cell of a grid over regions of interest, every cell
// in a channel of its own (PSROIPooling without its rounding).
// inputs, outputs, further attributes: see score_maps.h; attributes: samples (of a cell along each axis); aligned
// (samples are those of ROIAlign, where `samples` 0 is one for each pixel of the cell's length; else they lie inside of
// the cell and the features, as in R-FCN-PSROIAlign).
#include "ops/common/pixel_weights.h"
#include "ops/common/score_maps.h"

namespace engine {
namespace {

class PSROIAlign : public ScoreMaps {
public:
    explicit PSROIAlign(OpSpec spec)
        : ScoreMaps(std::move(spec)),
          samples_(spec_.attributes.integer("samples")),
          aligned_(spec_.attributes.flag("aligned")),
          rows_(rois_),
          columns_(rois_) {}

    void forward(const dnnl::stream&) override {
        find_images();
#pragma omp parallel for
        for (int64_t r = 0; r < rois_; r++) {
            const float* const of = roi(r);
            set(columns_[r], of[1], of[3], width_);
            set(rows_[r], of[2], of[4], height_);
        }
        for_cells([&](int64_t r, int64_t c) {
            const CellWeights rows = rows_[r][row_of(c)], columns = columns_[r][column_of(c)];
            const float* const x = plane(r, c);
            float sum = 0;
            for (int64_t h = 0; h < rows.count; h++)
                for (int64_t w = 0; w < columns.count; w++)
                    sum += rows.of[h] * columns.of[w] * x[(rows.first + h) * width_ + columns.first + w];
            return sum;
        });
    }

    void backward(const dnnl::stream&) override {
        add_cells([&](int64_t r, int64_t c, float given, float* wanted) {
            const CellWeights rows = rows_[r][row_of(c)], columns = columns_[r][column_of(c)];
            for (int64_t h = 0; h < rows.count; h++)
                for (int64_t w = 0; w < columns.count; w++)
                    wanted[(rows.first + h) * width_ + columns.first + w] += rows.of[h] * columns.of[w] * given;
        });
    }

private:
    // Sets the weights in the cells of a region from pixel `first` to pixel `last` of the picture.
    void set(PixelWeights& weights, float first, float last, int64_t pixels) const {
        if (aligned_)
            weights.align(first * scale_, last * scale_, group_, samples_, pixels);
        else
            inside(weights, first * scale_, (last + 1) * scale_, pixels);
    }

    // Sets samples that divide a cell into equal pieces. What of a cell lies before the features is cut off, which
    // moves its samples; those behind its end, or that of the features, count as 0.
    void inside(PixelWeights& weights, float begin, float end, int64_t pixels) const {
        weights.clear(group_);
        const float size = std::max(end - begin, 0.1f), length = size / float(group_);
        if (!std::isfinite(begin) || !std::isfinite(size)) return;
        const auto within = [&](float at) { return std::clamp(at, 0.f, float(pixels - 1)); };
        for (int64_t i = 0; i < group_; i++) {
            const float from = within(float(i) * length + begin), to = within(float(i + 1) * length + begin);
            for (int64_t sample = 1; sample <= samples_; sample++) {
                const float at = from + float(sample) * (length / float(samples_ + 1));
                if (at >= to) break;
                weights.add(i, at, 1 / float(samples_), pixels);
            }
        }
    }

    int64_t samples_;
    bool aligned_;
    std::vector<PixelWeights> rows_, columns_;  // the pixels' weights in the cells of each region
};

static const RegisterOp<PSROIAlign> registered("PSROIAlign");

}  // namespace
}  // namespace engine
