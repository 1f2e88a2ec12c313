// The average of samples, interpolated bilinearly between pixels, of each cell of a grid laid over regions of interest,
// every cell in a channel of its own (as PSROIPooling, without its rounding). inputs, output, attributes: score_maps.h;
// samples, of a cell along each axis; aligned: whether they are those of ROIAlign, which takes one for each pixel that
// a cell is long where `samples` is 0, or lie within the features and inside of the cell, as R-FCN-PSROIAlign has them.
#include "ops/common/score_maps.h"
#include "ops/common/shares.h"

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
            const Share rows = rows_[r][row_of(c)], columns = columns_[r][column_of(c)];
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
            const Share rows = rows_[r][row_of(c)], columns = columns_[r][column_of(c)];
            for (int64_t h = 0; h < rows.count; h++)
                for (int64_t w = 0; w < columns.count; w++)
                    wanted[(rows.first + h) * width_ + columns.first + w] += rows.of[h] * columns.of[w] * given;
        });
    }

private:
    // Of the cells of a region from pixel `first` to pixel `last` of the picture.
    void set(Shares& shares, float first, float last, int64_t pixels) const {
        if (aligned_)
            shares.align(first * scale_, last * scale_, group_, samples_, pixels);
        else
            inside(shares, first * scale_, (last + 1) * scale_, pixels);
    }

    // Samples divide a cell into equal pieces. What of it lies before the features is cut off, which moves them, and
    // those behind its end, or that of the features, are 0.
    void inside(Shares& shares, float begin, float end, int64_t pixels) const {
        shares.clear(group_);
        const float size = std::max(end - begin, 0.1f), length = size / float(group_);
        if (!std::isfinite(begin) || !std::isfinite(size)) return;
        const auto within = [&](float at) { return std::clamp(at, 0.f, float(pixels - 1)); };
        for (int64_t i = 0; i < group_; i++) {
            const float from = within(float(i) * length + begin), to = within(float(i + 1) * length + begin);
            for (int64_t sample = 1; sample <= samples_; sample++) {
                const float at = from + float(sample) * (length / float(samples_ + 1));
                if (at >= to) break;
                shares.add(i, at, 1 / float(samples_), pixels);
            }
        }
    }

    int64_t samples_;
    bool aligned_;
    std::vector<Shares> rows_, columns_;  // of pixels in every region's cells
};

static const RegisterOp<PSROIAlign> registered("PSROIAlign");

}  // namespace
}  // namespace engine
