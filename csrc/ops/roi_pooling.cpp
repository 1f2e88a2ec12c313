// The maximum over each cell of a grid laid over regions of interest (Girshick 2015, arXiv 1504.08083).
// inputs: features (N, C, H, W), rois (R, 5), row-major; output: (R, C, pooled_h, pooled_w), laid out as the features;
// attributes: spatial_scale, from the regions' pixels to those of the features.
#include <algorithm>
#include <cmath>

#include "kernels/vectorised.h"
#include "kernels/whole.h"
#include "ops/common/channel_layout.h"
#include "ops/common/parts.h"
#include "ops/common/rois.h"

namespace engine {
namespace {

// The largest pixel of a window and where it is, for channels that lie side by side.
ENGINE_VECTORISED static void best_of(const float* x, const Bin& bin, int64_t width, int64_t stride, int64_t lanes,
                                      float* y, int32_t* which) {
    constexpr int64_t together = 8;
    const int64_t first = bin.top * width + bin.left;
    int64_t lane = 0;
    for (; lane + together <= lanes; lane += together) {
        float best[together];
        int32_t at[together];
        std::copy_n(x + first * stride + lane, together, best);
        std::fill_n(at, together, int32_t(first));
        for (int64_t h = bin.top; h < bin.bottom; h++) {
            for (int64_t pixel = h * width + bin.left; pixel < h * width + bin.right; pixel++) {
                const float* const values = x + pixel * stride + lane;
#pragma omp simd
                for (int64_t l = 0; l < together; l++) {
                    const bool more = values[l] > best[l];
                    best[l] = more ? values[l] : best[l];
                    at[l] = more ? int32_t(pixel) : at[l];
                }
            }
        }
        std::copy_n(best, together, y + lane);
        std::copy_n(at, together, which + lane);
    }
    for (; lane < lanes; lane++) {
        int64_t at = first;
        for (int64_t h = bin.top; h < bin.bottom; h++)
            for (int64_t pixel = h * width + bin.left; pixel < h * width + bin.right; pixel++)
                if (x[pixel * stride + lane] > x[at * stride + lane]) at = pixel;
        y[lane] = x[at * stride + lane];
        which[lane] = int32_t(at);
    }
}

class ROIPooling : public Op {
public:
    explicit ROIPooling(OpSpec spec) : Op(std::move(spec)), scale_(float(spec_.attributes.real("spatial_scale"))) {
        const Dims &in = input(0)->shape, &out = spec_.output_shapes[0];
        images_ = in[0];
        height_ = in[2];
        width_ = in[3];
        rois_ = out[0];
        pooled_h_ = out[2];
        pooled_w_ = out[3];
        image_of_.resize(rois_);
        const TensorPtr y = output(0, layout_like(input(0)->layout, out, memory::data_type::f32));
        const BottomAndTop rows = rows_of_both(input(0)->layout, y->layout);
        from_ = rows.bottom;
        to_ = rows.top;
        which_ =
            workspace("which", plain_layout({int64_t(y->layout.get_size() / sizeof(float))}, memory::data_type::s32));
        touch(Pass::forward, {input(0), input(1), y, which_});
        if (input_gradient(0) && output_gradient(0)) touch(Pass::backward, {which_, y->diff, input(0)->diff});
    }

    void forward(const dnnl::stream&) override {
        const float* const rois = input(1)->data();
        for (int64_t r = 0; r < rois_; r++) image_of_[r] = roi_image(spec_, rois, r, images_);
        const int64_t blocks = to_.blocks();
#pragma omp parallel for collapse(2)
        for (int64_t r = 0; r < rois_; r++) {
            for (int64_t block = 0; block < blocks; block++) {
                for (int64_t cell = 0; cell < pooled_h_ * pooled_w_; cell++) {
                    const int64_t at = to_.offset(r, block) + cell * to_.inner_stride;
                    float* const y = outputs_[0]->data() + at;
                    const Bin window = bin(rois + r * roi_columns, cell);
                    if (image_of_[r] < 0 || window.empty()) {
                        std::fill_n(y, to_.lanes, 0.f);
                        std::fill_n(picked() + at, to_.lanes, nothing);
                    } else {
                        const float* const x = input(0)->data() + from_.offset(image_of_[r], block);
                        best_of(x, window, width_, from_.inner_stride, from_.lanes, y, picked() + at);
                    }
                }
            }
        }
    }

    // A block of channels belongs to one thread: regions overlap, and their gradients add.
    void backward(const dnnl::stream&) override {
        const int64_t cells = pooled_h_ * pooled_w_, pixels = height_ * width_, blocks = to_.blocks();
#pragma omp parallel for
        for (int64_t block = 0; block < blocks; block++) {
            for (int64_t n = 0; n < images_; n++)
                for (int64_t pixel = 0; pixel < pixels; pixel++) std::fill_n(wanted(n, block, pixel), from_.lanes, 0.f);
            for (int64_t r = 0; r < rois_; r++) {
                for (int64_t cell = 0; cell < cells; cell++) {
                    const int64_t at = to_.offset(r, block) + cell * to_.inner_stride;
                    const float* const given = outputs_[0]->diff->data() + at;
                    for (int64_t lane = 0; lane < to_.lanes; lane++)
                        if (picked()[at + lane] != nothing)
                            wanted(image_of_[r], block, picked()[at + lane])[lane] += given[lane];
                }
            }
        }
    }

private:
    static constexpr int32_t nothing = -1;

    int32_t* picked() const { return address<int32_t>(which_); }
    float* wanted(int64_t n, int64_t block, int64_t pixel) const {
        return input(0)->diff->data() + from_.offset(n, block) + pixel * from_.inner_stride;
    }

    Bin bin(const float* roi, int64_t cell) const {
        const int64_t left = scaled(roi[1]), top = scaled(roi[2]);
        // A region that is malformed counts as one pixel.
        const int64_t width = std::max<int64_t>(scaled(roi[3]) - left + 1, 1);
        const int64_t height = std::max<int64_t>(scaled(roi[4]) - top + 1, 1);
        const int64_t row = cell / pooled_w_, column = cell % pooled_w_;
        return {edge(top, row, height, pooled_h_, false, height_), edge(top, row + 1, height, pooled_h_, true, height_),
                edge(left, column, width, pooled_w_, false, width_),
                edge(left, column + 1, width, pooled_w_, true, width_)};
    }

    // Far outside of every image it does not matter where, but sums of such pixels must be numbers, too.
    int64_t scaled(float pixel) const {
        constexpr int64_t far = int64_t(1) << 40;
        return std::clamp(whole(std::round(pixel * scale_)), -far, far);
    }

    // Where cell i of `cells` over `size` pixels begins, or ends.
    static int64_t edge(int64_t begin, int64_t i, int64_t size, int64_t cells, bool end, int64_t limit) {
        const float at = float(i) * (float(size) / float(cells));
        return std::clamp<int64_t>(begin + whole(end ? std::ceil(at) : std::floor(at)), 0, limit);
    }

    float scale_;
    int64_t images_, height_, width_, rois_, pooled_h_, pooled_w_;
    ChannelRows from_{}, to_{};      // features and top: the same lanes
    std::vector<int64_t> image_of_;  // every region's
    TensorPtr which_;                // pixel of each maximum
};

static const RegisterOp<ROIPooling> registered("ROIPooling");

}  // namespace
}  // namespace engine
