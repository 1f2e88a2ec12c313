// The maximum over each cell of a grid laid over regions of interest (Girshick 2015, arXiv 1504.08083).
// inputs: features (N, C, H, W), row-major; rois (R, 5); output: (R, C, pooled_h, pooled_w); attributes:
// spatial_scale, from the regions' pixels to those of the features.
#include <algorithm>
#include <cmath>

#include "onednn_util.h"
#include "rois.h"

namespace engine {

class ROIPooling : public Op {
public:
    explicit ROIPooling(OpSpec spec) : Op(std::move(spec)), scale_(float(spec_.attributes.real("spatial_scale"))) {
        const Dims &in = input(0)->shape, &out = spec_.output_shapes[0];
        images_ = in[0];
        channels_ = in[1];
        height_ = in[2];
        width_ = in[3];
        rois_ = out[0];
        pooled_h_ = out[2];
        pooled_w_ = out[3];
        image_of_.resize(rois_);
        output(0, plain_layout(out));
        touch(Pass::forward, {input(0), input(1), outputs_[0]});
        which_ = workspace("which", plain_layout(out, memory::data_type::s32));
        touch(Pass::forward, which_);
        if (input_gradient(0) && output_gradient(0)) touch(Pass::backward, {which_, outputs_[0]->diff, input(0)->diff});
    }

    void forward(const dnnl::stream&) override {
        const float* const rois = input(1)->data();
        for (int64_t r = 0; r < rois_; r++) image_of_[r] = roi_image(spec_, rois, r, images_);
        const int64_t cells = pooled_h_ * pooled_w_, plane = height_ * width_;
#pragma omp parallel for collapse(2)
        for (int64_t r = 0; r < rois_; r++) {
            for (int64_t c = 0; c < channels_; c++) {
                float* const y = outputs_[0]->data() + (r * channels_ + c) * cells;
                int32_t* const which = picked() + (r * channels_ + c) * cells;
                const float* const x = input(0)->data() + (image_of_[r] * channels_ + c) * plane;
                for (int64_t cell = 0; cell < cells; cell++) {
                    which[cell] = image_of_[r] < 0 ? nothing : best(x, bin(rois + r * roi_columns, cell));
                    y[cell] = which[cell] == nothing ? 0 : x[which[cell]];
                }
            }
        }
    }

    // A channel belongs to one thread: regions overlap, and their gradients add.
    void backward(const dnnl::stream&) override {
        const int64_t cells = pooled_h_ * pooled_w_, plane = height_ * width_;
        const float* const given = outputs_[0]->diff->data();
        float* const wanted = input(0)->diff->data();
#pragma omp parallel for
        for (int64_t c = 0; c < channels_; c++) {
            for (int64_t n = 0; n < images_; n++) std::fill_n(wanted + (n * channels_ + c) * plane, plane, 0.f);
            for (int64_t r = 0; r < rois_; r++) {
                const int64_t from = (r * channels_ + c) * cells;
                for (int64_t cell = from; cell < from + cells; cell++)
                    if (picked()[cell] != nothing)
                        wanted[(image_of_[r] * channels_ + c) * plane + picked()[cell]] += given[cell];
            }
        }
    }

private:
    static constexpr int32_t nothing = -1;

    int32_t* picked() const { return static_cast<int32_t*>(which_->buffer->address()); }

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

    int64_t scaled(float pixel) const { return std::lround(pixel * scale_); }

    // Where cell i of `cells` over `size` pixels begins, or ends.
    static int64_t edge(int64_t begin, int64_t i, int64_t size, int64_t cells, bool end, int64_t limit) {
        const float at = float(i) * (float(size) / float(cells));
        return std::clamp<int64_t>(begin + int64_t(end ? std::ceil(at) : std::floor(at)), 0, limit);
    }

    int32_t best(const float* x, const Bin& bin) const {
        if (bin.empty()) return nothing;
        int64_t index = bin.top * width_ + bin.left;
        for (int64_t h = bin.top; h < bin.bottom; h++)
            for (int64_t w = bin.left; w < bin.right; w++)
                if (x[h * width_ + w] > x[index]) index = h * width_ + w;
        return int32_t(index);
    }

    float scale_;
    int64_t images_, channels_, height_, width_, rois_, pooled_h_, pooled_w_;
    std::vector<int64_t> image_of_;  // every region's
    TensorPtr which_;                // pixel of each maximum
};

static const RegisterOp<ROIPooling> registered("ROIPooling");

}  // namespace engine
