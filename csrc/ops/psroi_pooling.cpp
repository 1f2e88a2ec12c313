// Averages each cell of a grid over regions of interest, every cell in a channel of its own (Dai et al. 2016, arXiv
// 1605.06409).
// inputs, outputs, attributes: see score_maps.h.
#include <algorithm>
#include <cmath>

#include "kernels/whole.h"
#include "ops/common/score_maps.h"

namespace engine {
namespace {

class PSROIPooling : public ScoreMaps {
public:
    explicit PSROIPooling(OpSpec spec) : ScoreMaps(std::move(spec)) {}

    void forward(const dnnl::stream&) override {
        find_images();
        for_cells([&](int64_t r, int64_t c) {
            const Bin cell = bin(roi(r), c);
            if (cell.empty()) return 0.f;
            const float* const x = plane(r, c);
            float sum = 0;
            for (int64_t h = cell.top; h < cell.bottom; h++)
                for (int64_t w = cell.left; w < cell.right; w++) sum += x[h * width_ + w];
            return sum / area(cell);
        });
    }

    void backward(const dnnl::stream&) override {
        add_cells([&](int64_t r, int64_t c, float given, float* wanted) {
            const Bin cell = bin(roi(r), c);
            if (cell.empty()) return;
            const float share = given / area(cell);
            for (int64_t h = cell.top; h < cell.bottom; h++)
                for (int64_t w = cell.left; w < cell.right; w++) wanted[h * width_ + w] += share;
        });
    }

private:
    static float area(const Bin& bin) { return float((bin.bottom - bin.top) * (bin.right - bin.left)); }

    // Returns the cell that channel c averages.
    Bin bin(const float* roi, int64_t c) const {
        const float left = std::round(roi[1]) * scale_, top = std::round(roi[2]) * scale_;
        // Regions include the pixels at both ends, and are never smaller than 0.1.
        const float width = std::max((std::round(roi[3]) + 1) * scale_ - left, 0.1f);
        const float height = std::max((std::round(roi[4]) + 1) * scale_ - top, 0.1f);
        const int64_t row = row_of(c), column = column_of(c);
        return {edge(top, row, height, false, height_), edge(top, row + 1, height, true, height_),
                edge(left, column, width, false, width_), edge(left, column + 1, width, true, width_)};
    }

    // Returns where cell i along an axis begins, or ends if `end`.
    int64_t edge(float begin, int64_t i, float size, bool end, int64_t limit) const {
        const float at = float(i) * (size / float(group_)) + begin;
        return std::clamp<int64_t>(whole(end ? std::ceil(at) : std::floor(at)), 0, limit);
    }
};

static const RegisterOp<PSROIPooling> registered("PSROIPooling");

}  // namespace
}  // namespace engine
