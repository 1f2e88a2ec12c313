// Keeps the labels and weights of the regions with the largest losses, per_image of each image. All others get
// ignore_label and weight 0. It has no backward.
// inputs: rois (R, 5, H, W), losses and labels (R, 1, H, W), weights (R, C, H, W), all float32, row-major; outputs:
// labels, weights; attributes: per_image, ignore_label.
#include <algorithm>
#include <map>
#include <numeric>

#include "kernels/whole.h"
#include "ops/common/onednn_util.h"
#include "ops/common/rois.h"

namespace engine {
namespace {

class BoxAnnotatorOHEM : public Op {
public:
    explicit BoxAnnotatorOHEM(OpSpec spec)
        : Op(std::move(spec)),
          per_image_(spec_.attributes.integer("per_image")),
          ignore_label_(float(spec_.attributes.integer("ignore_label"))),
          plane_(input(1)->count() / input(0)->shape[0]),
          channels_(input(3)->shape[1]),
          order_(input(1)->count()) {
        for (size_t i = 0; i < 2; i++) touch(Pass::forward, output(i, plain_layout(spec_.output_shapes[i])));
        for (const auto& each : spec_.inputs) touch(Pass::forward, each);
    }

    void forward(const dnnl::stream&) override {
        const float* const losses = input(1)->data();
        std::iota(order_.begin(), order_.end(), 0);
        std::stable_sort(order_.begin(), order_.end(), [&](int64_t a, int64_t b) { return losses[a] > losses[b]; });
        std::fill_n(outputs_[0]->data(), outputs_[0]->count(), ignore_label_);
        std::fill_n(outputs_[1]->data(), outputs_[1]->count(), 0.f);
        std::map<int64_t, int64_t> chosen;  // image -> how many of its regions are chosen
        for (const int64_t at : order_) {
            const int64_t region = at / plane_, pixel = at % plane_;
            const float image = input(0)->data()[region * roi_columns * plane_ + pixel];
            if (!(image >= 0) || chosen[whole(image)]++ >= per_image_) continue;
            outputs_[0]->data()[at] = input(2)->data()[at];
            for (int64_t c = 0; c < channels_; c++) {
                const int64_t from = (region * channels_ + c) * plane_ + pixel;
                outputs_[1]->data()[from] = input(3)->data()[from];
            }
        }
    }

private:
    int64_t per_image_;
    float ignore_label_;
    int64_t plane_, channels_;
    std::vector<int64_t> order_;
};

static const RegisterOp<BoxAnnotatorOHEM> registered("BoxAnnotatorOHEM");

}  // namespace
}  // namespace engine
