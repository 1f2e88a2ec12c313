// Computes the loss of the second version of YOLO.
// inputs, outputs, further attributes: see grid_loss.h; attributes: bias_match, noobject_scale.
#include "ops/common/grid_loss.h"

namespace engine {
namespace {

class RegionLoss : public GridLoss {
public:
    explicit RegionLoss(OpSpec spec) : GridLoss(std::move(spec)) {
        const auto& attributes = spec_.attributes;
        bias_match_ = attributes.flag("bias_match");
        noobject_scale_ = float(attributes.real("noobject_scale"));
    }

private:
    void compare(int64_t n, const std::vector<Truth>& truths) const override {
        expect_nothing(n, truths);
        for (const Truth& truth : truths) expect(n, truth);
    }

    // Makes boxes that cover none of the truths well predict no object: their loss is scale p^2 / 2.
    void expect_nothing(int64_t n, const std::vector<Truth>& truths) const {
        for (int64_t box = 0; box < grid_.boxes(); box++) {
            if (covers_one(n, box, truths)) continue;
            const float p = sigmoid(prediction(n, box, AnchorGrid::object));
            slope(n, box, AnchorGrid::object) = noobject_scale_ * p * p * (1 - p);
        }
    }

    // Makes one box predict a truth: an object, whose loss is scale (1 - p)^4 / 2, its place and its class. It is the
    // box in whose pixel the truth has its center and whose anchor, or without bias_match whose predicted size, comes
    // closest.
    void expect(int64_t n, const Truth& truth) const {
        const Place place = this->place(truth.box);
        const int64_t anchor = closest(n, truth.box, place.row, place.column);
        const int64_t box = grid_.box_of(anchor, place.row, place.column);
        const AnchorGrid::Size size = grid_.size(anchor);
        expect_offset(n, box, 0, place.x);
        expect_offset(n, box, 1, place.y);
        expect_offset(n, box, 2, std::log(truth.box.width() / size.width));
        expect_offset(n, box, 3, std::log(truth.box.height() / size.height));
        const float p = sigmoid(prediction(n, box, AnchorGrid::object)), rest = 1 - p;
        slope(n, box, AnchorGrid::object) = -2 * object_scale_ * rest * rest * rest * p * rest;
        std::vector<float> classes(grid_.classes);
        grid_.probabilities(input(0)->data(), n, box, classes.data());
        for (int64_t c = 0; c < grid_.classes; c++)
            slope(n, box, AnchorGrid::first_class + c) = class_scale_ * (classes[c] - float(c == truth.label - 1));
    }

    // Returns that anchor at a pixel.
    int64_t closest(int64_t n, const Box& truth, int64_t row, int64_t column) const {
        const Box wanted = AnchorGrid::centered(0, 0, truth.width(), truth.height());
        int64_t best = 0;
        float most = 0;
        for (int64_t anchor = 0; anchor < grid_.anchors; anchor++) {
            const Box predicted = grid_.decode(input(0)->data(), n, grid_.box_of(anchor, row, column));
            AnchorGrid::Size size{predicted.width(), predicted.height()};
            if (bias_match_) size = grid_.size(anchor);
            const float shared = overlap(AnchorGrid::centered(0, 0, size.width, size.height), wanted);
            if (shared <= most) continue;
            most = shared;
            best = anchor;
        }
        return best;
    }

    // Makes a box predict the offset `wanted`, which for x and y is a sigmoid's: by the smooth L1 difference.
    void expect_offset(int64_t n, int64_t box, int64_t k, float wanted) const {
        const float raw = prediction(n, box, k), value = k < 2 ? sigmoid(raw) : raw;
        const float inner = k < 2 ? value * (1 - value) : 1;
        slope(n, box, k) = coord_scale_ * std::clamp(value - wanted, -1.f, 1.f) * inner;
    }

    bool bias_match_;
    float noobject_scale_;
};

static const RegisterOp<RegionLoss> registered("RegionLoss");

}  // namespace
}  // namespace engine
