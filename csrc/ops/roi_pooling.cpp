// Computes the maximum over each cell of a grid over regions of interest (Girshick 2015, arXiv 1504.08083).
// inputs, outputs, attributes: see region_grid.h.
#include <algorithm>
#include <cmath>

#include "kernels/vectorised.h"
#include "kernels/whole.h"
#include "ops/common/region_grid.h"

namespace engine {
namespace {

// Does what best_of() does, for `together` channels, by vectors: GCC does not vectorise a loop over so few.
template <int64_t together>
ENGINE_INLINE void best_of_few(const float* x, const Bin& bin, int64_t width, int64_t stride, float* y,
                               int32_t* which) {
    typedef float Values __attribute__((vector_size(4 * together)));
    typedef int32_t Places __attribute__((vector_size(4 * together)));
    const int64_t first = bin.top * width + bin.left;
    Values best, values;
    Places at = Places{} + int32_t(first);
    __builtin_memcpy(&best, x + first * stride, sizeof(best));
    for (int64_t h = bin.top; h < bin.bottom; h++) {
        for (int64_t pixel = h * width + bin.left; pixel < h * width + bin.right; pixel++) {
            __builtin_memcpy(&values, x + pixel * stride, sizeof(values));
            const Places more = values > best;
            best = more ? values : best;
            at = more ? Places{} + int32_t(pixel) : at;
        }
    }
    __builtin_memcpy(y, &best, sizeof(best));
    __builtin_memcpy(which, &at, sizeof(at));
}

// Finds the largest pixel of a window and its place, for `lanes` channels that lie side by side.
ENGINE_VECTORISED void best_of(const float* x, const Bin& bin, int64_t width, int64_t stride, int64_t lanes, float* y,
                               int32_t* which) {
    const int64_t first = bin.top * width + bin.left;
    int64_t lane = 0;
    for (; lane + 16 <= lanes; lane += 16) best_of_few<16>(x + lane, bin, width, stride, y + lane, which + lane);
    for (; lane + 8 <= lanes; lane += 8) best_of_few<8>(x + lane, bin, width, stride, y + lane, which + lane);
    for (; lane < lanes; lane++) {
        int64_t at = first;
        for (int64_t h = bin.top; h < bin.bottom; h++)
            for (int64_t pixel = h * width + bin.left; pixel < h * width + bin.right; pixel++)
                if (x[pixel * stride + lane] > x[at * stride + lane]) at = pixel;
        y[lane] = x[at * stride + lane];
        which[lane] = int32_t(at);
    }
}

class ROIPooling : public RegionGrid {
public:
    explicit ROIPooling(OpSpec spec) : RegionGrid(std::move(spec)) {
        const auto size = int64_t(outputs_[0]->layout.get_size() / sizeof(float));
        which_ = workspace("which", plain_layout({size}, memory::data_type::s32));
        touch(Pass::forward, which_);
        if (learns()) touch(Pass::backward, which_);
    }

    void forward(const dnnl::stream&) override {
        find_images();
        for_cells([&](int64_t r, int64_t block, int64_t cell) {
            const int64_t at = place(r, block, cell);
            float* const y = outputs_[0]->data() + at;
            const Bin window = bin(roi(r), cell);
            if (image_of_[r] < 0 || window.empty()) {
                std::fill_n(y, to_.lanes, 0.f);
                std::fill_n(picked() + at, to_.lanes, nothing);
            } else {
                const float* const x = input(0)->data() + from_.offset(image_of_[r], block);
                best_of(x, window, width_, from_.inner_stride, from_.lanes, y, picked() + at);
            }
        });
    }

    void backward(const dnnl::stream&) override {
        add_cells([&](int64_t r, int64_t block, int64_t cell) {
            const int64_t at = place(r, block, cell);
            const float* const given = outputs_[0]->diff->data() + at;
            for (int64_t lane = 0; lane < to_.lanes; lane++)
                if (picked()[at + lane] != nothing)
                    wanted(image_of_[r], block, picked()[at + lane])[lane] += given[lane];
        });
    }

private:
    static constexpr int32_t nothing = -1;

    int32_t* picked() const { return address<int32_t>(which_); }

    Bin bin(const float* roi, int64_t cell) const {
        const int64_t left = scaled(roi[1]), top = scaled(roi[2]);
        // A malformed region counts as one pixel.
        const int64_t width = std::max<int64_t>(scaled(roi[3]) - left + 1, 1);
        const int64_t height = std::max<int64_t>(scaled(roi[4]) - top + 1, 1);
        const int64_t row = cell / pooled_w_, column = cell % pooled_w_;
        return {edge(top, row, height, pooled_h_, false, height_), edge(top, row + 1, height, pooled_h_, true, height_),
                edge(left, column, width, pooled_w_, false, width_),
                edge(left, column + 1, width, pooled_w_, true, width_)};
    }

    // Returns a pixel of the features. It is bounded, far outside of every image, so that sums of pixels do not
    // overflow.
    int64_t scaled(float pixel) const {
        constexpr int64_t far = int64_t(1) << 40;
        return std::clamp(whole(std::round(pixel * scale_)), -far, far);
    }

    // Returns where cell i of `cells` over `size` pixels begins, or ends if `end`.
    static int64_t edge(int64_t begin, int64_t i, int64_t size, int64_t cells, bool end, int64_t limit) {
        const float at = float(i) * (float(size) / float(cells));
        return std::clamp<int64_t>(begin + whole(end ? std::ceil(at) : std::floor(at)), 0, limit);
    }

    TensorPtr which_;  // the pixel of each maximum, or `nothing`
};

static const RegisterOp<ROIPooling> registered("ROIPooling");

}  // namespace
}  // namespace engine
