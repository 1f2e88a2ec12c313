// Computes detections from the predictions of a detector with prior boxes: boxes are decoded, and of those of a class
// that overlap only the best is kept. It has no backward.
// inputs: locations (N, P * 4, or P * classes * 4), confidences (N, P * classes), priors (1, 2, P * 4), all float32,
// row-major; outputs: (1, 1, rows, 7): image, label, confidence, x1, y1, x2, y2; unused rows are -1; attributes:
// classes, background (-1: none), share_location, code, variance_in_target, confidence_threshold (optional),
// nms_threshold, eta, top_k, keep_top_k (-1: all).
#include <algorithm>
#include <cfloat>

#include "kernels/boxes.h"
#include "ops/common/onednn_util.h"

namespace engine {
namespace {

class DetectionOutput : public Op {
public:
    explicit DetectionOutput(OpSpec spec)
        : Op(std::move(spec)), code_(spec_.attributes.text("code"), spec_.attributes.flag("variance_in_target")) {
        const auto& attributes = spec_.attributes;
        classes_ = attributes.integer("classes");
        background_ = attributes.integer("background");
        location_classes_ = attributes.flag("share_location") ? 1 : classes_;
        least_ = float(attributes.real("confidence_threshold", -FLT_MAX));
        nms_threshold_ = float(attributes.real("nms_threshold"));
        eta_ = float(attributes.real("eta"));
        top_k_ = attributes.integer("top_k");
        keep_top_k_ = attributes.integer("keep_top_k");
        images_ = input(0)->shape[0];
        priors_ = input(2)->count() / 8;
        found_.resize(images_);
        output(0, plain_layout(spec_.output_shapes[0]));
        touch(Pass::forward, {input(0), input(1), input(2), outputs_[0]});
    }

    void forward(const dnnl::stream&) override {
#pragma omp parallel for schedule(dynamic)
        for (int64_t n = 0; n < images_; n++) found_[n] = detect(n);
        float* row = outputs_[0]->data();
        std::fill_n(row, outputs_[0]->count(), -1.f);
        for (int64_t n = 0; n < images_; n++) {
            for (const Detection& each : found_[n]) {
                const Box& box = each.box;
                const float values[columns]{float(n), float(each.label), each.score, box.x1, box.y1, box.x2, box.y2};
                row = std::copy_n(values, columns, row);
            }
        }
    }

private:
    static constexpr int columns = 7;

    struct Detection {
        int64_t label;
        float score;
        Box box;
    };

    // Returns the detections in image n, ordered by label and then by score.
    std::vector<Detection> detect(int64_t n) const {
        std::vector<Detection> found;
        std::vector<Box> boxes;
        std::vector<float> scores(priors_);
        for (int64_t label = 0; label < classes_; label++) {
            if (label == background_) continue;
            if (boxes.empty() || location_classes_ > 1) boxes = decode(n, location_classes_ > 1 ? label : 0);
            const float* const confidences = input(1)->data() + n * priors_ * classes_ + label;
            for (int64_t p = 0; p < priors_; p++) scores[p] = confidences[p * classes_];
            for (const int64_t p : suppress(boxes, scores, least_, top_k_, nms_threshold_, eta_))
                found.push_back({label, scores[p], boxes[p]});
        }
        if (keep_top_k_ < 0 || int64_t(found.size()) <= keep_top_k_) return found;
        const auto better = [](const Detection& a, const Detection& b) { return a.score > b.score; };
        std::stable_sort(found.begin(), found.end(), better);
        found.resize(keep_top_k_);
        const auto lower = [](const Detection& a, const Detection& b) { return a.label < b.label; };
        std::stable_sort(found.begin(), found.end(), lower);
        return found;
    }

    std::vector<Box> decode(int64_t n, int64_t location_class) const {
        const float* const priors = input(2)->data();
        const float* const variances = priors + priors_ * 4;
        std::vector<Box> boxes(priors_);
        for (int64_t p = 0; p < priors_; p++) {
            const int64_t at = ((n * priors_ + p) * location_classes_ + location_class) * 4;
            boxes[p] = code_.decode(Box::at(priors + p * 4), variances + p * 4, input(0)->data() + at);
        }
        return boxes;
    }

    BoxCode code_;
    int64_t classes_, background_, location_classes_, top_k_, keep_top_k_, images_, priors_;
    float least_, nms_threshold_, eta_;
    std::vector<std::vector<Detection>> found_;  // in each image
};

static const RegisterOp<DetectionOutput> registered("DetectionOutput");

}  // namespace
}  // namespace engine
