// Computes the regions that a region proposal network proposes, from its scores and offsets (Ren et al. 2015, arXiv
// 1506.01497): the best of the anchors, moved by their offsets, that do not overlap. It has no backward.
// inputs: scores (N, 2 A, H, W), those of objects behind those of the background; offsets (N, 4 A, H, W); image sizes
// (N or 1, 3 or more): height, width, scale; all float32, row-major; outputs: regions (N most, 5): image, x1, y1, x2,
// y2 in pixels; optionally their scores (N most, 1); unused rows are -1; attributes: anchors (x1, y1, x2, y2 of each at
// the first pixel), stride, least_size, candidates (how many regions are compared), nms_threshold.
#include <algorithm>
#include <cfloat>
#include <cmath>

#include "kernels/boxes.h"
#include "ops/common/onednn_util.h"
#include "ops/common/rois.h"

namespace engine {
namespace {

class Proposal : public Op {
public:
    explicit Proposal(OpSpec spec)
        : Op(std::move(spec)),
          stride_(float(spec_.attributes.real("stride"))),
          least_size_(float(spec_.attributes.real("least_size"))),
          threshold_(float(spec_.attributes.real("nms_threshold"))),
          candidates_(spec_.attributes.integer("candidates")) {
        const std::vector<double> anchors = spec_.attributes.reals("anchors");
        anchors_.assign(anchors.begin(), anchors.end());
        const Dims& scores = input(0)->shape;
        images_ = scores[0];
        height_ = scores[2];
        width_ = scores[3];
        most_ = spec_.output_shapes[0][0] / images_;
        sizes_stride_ = input(2)->shape[0] == images_ ? input(2)->count() / images_ : 0;
        for (size_t i = 0; i < outputs_.size(); i++) {
            output(i, plain_layout(spec_.output_shapes[i]));
            touch(Pass::forward, outputs_[i]);
        }
        touch(Pass::forward, {input(0), input(1), input(2)});
        found_.resize(images_);
    }

    void forward(const dnnl::stream&) override {
#pragma omp parallel for schedule(dynamic)
        for (int64_t n = 0; n < images_; n++) found_[n] = propose(n);
        for (const auto& each : outputs_) std::fill_n(each->data(), each->count(), -1.f);
        int64_t row = 0;
        for (int64_t n = 0; n < images_; n++) {
            for (const Region& each : found_[n]) {
                const Box& box = each.box;
                const float values[roi_columns]{float(n), box.x1, box.y1, box.x2, box.y2};
                std::copy_n(values, roi_columns, outputs_[0]->data() + row * roi_columns);
                if (outputs_.size() > 1) outputs_[1]->data()[row] = each.score;
                row++;
            }
        }
    }

private:
    struct Region {
        Box box;  // includes the pixels x2 and y2
        float score;
    };

    std::vector<Region> propose(int64_t n) const {
        const float* const size = input(2)->data() + n * sizes_stride_;
        const float least = least_size_ * size[2];
        const float bottom = std::max(size[0] - 1, 0.f), right = std::max(size[1] - 1, 0.f);
        std::vector<Box> boxes;
        std::vector<float> scores;
        const int64_t anchors = int64_t(anchors_.size()) / 4, plane = height_ * width_;
        const float* const objects = input(0)->data() + (2 * n + 1) * anchors * plane;
        for (int64_t pixel = 0; pixel < plane; pixel++) {
            for (int64_t a = 0; a < anchors; a++) {
                Box box = moved(n, a, pixel);
                box = {std::clamp(box.x1, 0.f, right), std::clamp(box.y1, 0.f, bottom), std::clamp(box.x2, 0.f, right),
                       std::clamp(box.y2, 0.f, bottom)};
                if (box.width() + 1 < least || box.height() + 1 < least) continue;
                boxes.push_back({box.x1, box.y1, box.x2 + 1, box.y2 + 1});
                scores.push_back(objects[a * plane + pixel]);
            }
        }
        std::vector<Region> regions;
        for (const int64_t i : suppress(boxes, scores, -FLT_MAX, candidates_, threshold_, 1, most_))
            regions.push_back({{boxes[i].x1, boxes[i].y1, boxes[i].x2 - 1, boxes[i].y2 - 1}, scores[i]});
        return regions;
    }

    // Returns anchor a at a pixel of image n, moved and resized by its offsets.
    Box moved(int64_t n, int64_t a, int64_t pixel) const {
        const int64_t plane = height_ * width_;
        const float* const offsets = input(1)->data() + (n * int64_t(anchors_.size()) + 4 * a) * plane + pixel;
        const float* const anchor = &anchors_[4 * a];
        const float width = anchor[2] - anchor[0] + 1, height = anchor[3] - anchor[1] + 1;
        const float x = anchor[0] + float(pixel % width_) * stride_ + width / 2 + offsets[0] * width;
        const float y = anchor[1] + float(pixel / width_) * stride_ + height / 2 + offsets[plane] * height;
        const float reach_x = std::exp(offsets[2 * plane]) * width / 2;
        const float reach_y = std::exp(offsets[3 * plane]) * height / 2;
        return {x - reach_x, y - reach_y, x + reach_x, y + reach_y};
    }

    float stride_, least_size_, threshold_;
    int64_t candidates_, images_, height_, width_, most_;
    int64_t sizes_stride_;  // from the size of one image to the next; 0 if all have one size
    std::vector<float> anchors_;
    std::vector<std::vector<Region>> found_;  // in each image
};

static const RegisterOp<Proposal> registered("Proposal");

}  // namespace
}  // namespace engine
