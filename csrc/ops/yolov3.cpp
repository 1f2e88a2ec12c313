// The loss of the third version of YOLO: differences of sigmoids, which are the slopes of cross-entropies, and of the
// logarithms of sizes.
// inputs, output: see GridLoss; the output is divided by N; attributes: those, and every (width and height of each
// anchor of all planes, in pixels of this one), mask (which of them are `anchors`), object_scale, class_scale,
// coord_scale, threshold, squared (the slopes are those of squares of differences, not of cross-entropies), focal.
#include "ops/common/grid_loss.h"

namespace engine {
namespace {

class Yolov3 : public GridLoss {
public:
    explicit Yolov3(OpSpec spec)
        : GridLoss(std::move(spec)),
          every_(grid_.classes, grid_.height, grid_.width, spec_.attributes.reals("every")),
          mask_(spec_.attributes.integers("mask")) {
        const auto& attributes = spec_.attributes;
        squared_ = attributes.flag("squared");
        focal_ = attributes.flag("focal");
        object_scale_ = float(attributes.real("object_scale"));
        class_scale_ = float(attributes.real("class_scale"));
        coord_scale_ = float(attributes.real("coord_scale"));
        threshold_ = float(attributes.real("threshold"));
    }

private:
    void compare(int64_t n, const std::vector<Truth>& truths) const override {
        for (int64_t box = 0; box < grid_.boxes(); box++) {
            if (covers_one(n, box, truths, threshold_)) continue;
            slope(n, box, AnchorGrid::object) = sigmoid(prediction(n, box, AnchorGrid::object));
        }
        for (const Truth& truth : truths) expect(n, truth);
    }

    // Of the box in whose pixel the truth has its center, if the closest one of all anchors is one of this plane's.
    // What has no area is no truth.
    void expect(int64_t n, const Truth& truth) const {
        if (!(truth.box.width() > 0 && truth.box.height() > 0)) return;
        const auto anchor = std::find(mask_.begin(), mask_.end(), closest(truth.box)) - mask_.begin();
        if (anchor == int64_t(mask_.size())) return;
        const Place place = this->place(truth.box);
        const int64_t box = grid_.box_of(anchor, place.row, place.column);
        const AnchorGrid::Size size = grid_.size(anchor);
        const float scale = coord_scale_ * (2 - truth.box.width() * truth.box.height());
        slope(n, box, 0) = scale * (sigmoid(prediction(n, box, 0)) - place.x);
        slope(n, box, 1) = scale * (sigmoid(prediction(n, box, 1)) - place.y);
        slope(n, box, 2) = scale * (prediction(n, box, 2) - std::log(truth.box.width() / size.width));
        slope(n, box, 3) = scale * (prediction(n, box, 3) - std::log(truth.box.height() / size.height));
        slope(n, box, AnchorGrid::object) = object_scale_ * (sigmoid(prediction(n, box, AnchorGrid::object)) - 1);
        expect_class(n, box, truth.label - 1);
    }

    // A box that another truth of the image has claimed has that one's class, too.
    void expect_class(int64_t n, int64_t box, int64_t label) const {
        const float p = sigmoid(prediction(n, box, AnchorGrid::first_class + label));
        if (slope(n, box, AnchorGrid::first_class) != 0) {
            slope(n, box, AnchorGrid::first_class + label) = p - 1;
            return;
        }
        const float scale = class_scale_ * (focal_ ? focus(p) : 1);
        for (int64_t c = 0; c < grid_.classes; c++) {
            const float value = sigmoid(prediction(n, box, AnchorGrid::first_class + c));
            slope(n, box, AnchorGrid::first_class + c) = scale * (value - float(c == label));
        }
    }

    // How much a class counts that is found with probability p: half the slope of the focal loss with gamma 2.
    static float focus(float p) {
        p += 1e-15f;
        return -0.5f * (1 - p) * (2 * p * std::log(p) + p - 1);
    }

    int64_t closest(const Box& truth) const {
        const Box wanted = AnchorGrid::centered(0, 0, truth.width(), truth.height());
        int64_t best = -1;
        float most = 0;
        for (int64_t anchor = 0; anchor < every_.anchors; anchor++) {
            const AnchorGrid::Size size = every_.size(anchor);
            const float shared = overlap(AnchorGrid::centered(0, 0, size.width, size.height), wanted);
            if (shared <= most) continue;
            most = shared;
            best = anchor;
        }
        return best;
    }

    void finish(int64_t n) const override {
        if (!squared_) return;
        for (int64_t box = 0; box < grid_.boxes(); box++) {
            for (int64_t k = 0; k < AnchorGrid::first_class + grid_.classes; k++) {
                if (k == 2 || k == 3) continue;
                const float p = sigmoid(prediction(n, box, k));
                slope(n, box, k) *= p * (1 - p);
            }
        }
    }

    double shown(double sum) const override { return sum / double(images_); }

    AnchorGrid every_;
    std::vector<int64_t> mask_;
    bool squared_, focal_;
    float object_scale_, class_scale_, coord_scale_, threshold_;
};

static const RegisterOp<Yolov3> registered("Yolov3");

}  // namespace
}  // namespace engine
