// The base of losses of YOLO detectors. As in the originals, the loss that they show is the sum of squares of the
// slopes by which the net learns: the slopes are not its gradient.
// inputs: predictions (N, anchors * (5 + classes), H, W), ground truth (1, 1, M, 8) with labels from 1 or (N, 1, M, 5)
// with labels from 0, both float32, row-major; outputs: loss (); attributes: classes, anchors (width and height of
// each, in pixels of the plane), loss_weight, object_scale, class_scale, coord_scale, threshold (of covers_one()).
#pragma once

#include "kernels/anchor_grid.h"
#include "kernels/whole.h"
#include "ops/common/onednn_util.h"

namespace engine {

class GridLoss : public Op {
public:
    void forward(const dnnl::stream&) override {
        const auto& shape = input(1)->shape;
        const Truths truths =
            shape[3] == truth_columns
                ? read_truths(spec_.name, input(1)->data(), shape[2], grid_.classes + 1, 0)
                : read_centered_truths(spec_.name, input(1)->data(), shape[0], shape[2], grid_.classes);
        const int64_t row = input(0)->count() / images_;
#pragma omp parallel for schedule(dynamic)
        for (int64_t n = 0; n < images_; n++) {
            float* const slopes = slopes_->data() + n * row;
            std::fill_n(slopes, row, 0.f);
            const auto found = truths.find(n);
            const std::vector<Truth> own = found == truths.end() ? std::vector<Truth>() : found->second;
            compare(n, own);
            sums_[n] = 0;
            for (int64_t i = 0; i < row; i++) sums_[n] += double(slopes[i]) * double(slopes[i]);
            sums_[n] += finish(n, own);
        }
        double sum = 0;  // in the order of images, whatever the number of threads
        for (double each : sums_) sum += each;
        outputs_[0]->data()[0] = float(shown(sum));
    }

    void backward(const dnnl::stream&) override {
        const int64_t count = input(0)->count();
        const float* const slopes = slopes_->data();
        float* const diff = input(0)->diff->data();
        const float scale = float(loss_gradient() / double(images_));
#pragma omp parallel for simd
        for (int64_t i = 0; i < count; i++) diff[i] = scale * slopes[i];
    }

protected:
    explicit GridLoss(OpSpec spec)
        : Op(std::move(spec)),
          grid_(spec_.attributes.integer("classes"), input(0)->shape[2], input(0)->shape[3],
                spec_.attributes.reals("anchors")),
          images_(input(0)->shape[0]),
          object_scale_(float(spec_.attributes.real("object_scale"))),
          class_scale_(float(spec_.attributes.real("class_scale"))),
          coord_scale_(float(spec_.attributes.real("coord_scale"))),
          threshold_(float(spec_.attributes.real("threshold"))),
          sums_(images_) {
        make_loss();
        slopes_ = workspace("slopes", input(0)->layout);
        touch(Pass::forward, {input(0), input(1), slopes_});
        if (!input_gradient(0)) return;
        touch(Pass::backward, {slopes_, input(0)->diff});
        may_overwrite(Pass::backward, slopes_, input(0)->diff);
    }

    // Sets the slopes of image n, which are 0 before.
    virtual void compare(int64_t n, const std::vector<Truth>& truths) const = 0;
    // Turns the slopes of image n, whose squares have been summed by then, into its gradient times N. Returns what the
    // shown loss has beside that sum.
    virtual double finish(int64_t, const std::vector<Truth>&) const { return 0; }
    // Returns the loss to show, from the sum over all images.
    virtual double shown(double sum) const { return sum; }

    float& slope(int64_t n, int64_t box, int64_t k) const { return slopes_->data()[grid_.at(n, box, k)]; }
    float prediction(int64_t n, int64_t box, int64_t k) const { return input(0)->data()[grid_.at(n, box, k)]; }
    // Tells whether a predicted box overlaps any of the truths by more than threshold_.
    bool covers_one(int64_t n, int64_t box, const std::vector<Truth>& truths) const {
        const Box predicted = grid_.decode(input(0)->data(), n, box);
        const auto covers = [&](const Truth& truth) { return overlap(predicted, truth.box) > threshold_; };
        return std::any_of(truths.begin(), truths.end(), covers);
    }

    // The pixel in which a box has its center, and the center's offset in it.
    struct Place {
        int64_t row, column;
        float x, y;
    };
    Place place(const Box& box) const {
        const float x = (box.x1 + box.x2) / 2 * float(grid_.width), y = (box.y1 + box.y2) / 2 * float(grid_.height);
        const int64_t column = std::clamp<int64_t>(whole(x), 0, grid_.width - 1);
        const int64_t row = std::clamp<int64_t>(whole(y), 0, grid_.height - 1);
        return {row, column, x - float(column), y - float(row)};
    }

    AnchorGrid grid_;
    int64_t images_;
    float object_scale_, class_scale_, coord_scale_, threshold_;

private:
    TensorPtr slopes_;
    std::vector<double> sums_;
};

}  // namespace engine
