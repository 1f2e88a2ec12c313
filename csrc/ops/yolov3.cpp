// Computes the loss of the third version of YOLO, divided by N. Slopes are differences of sigmoids, which are those of
// cross-entropies, and of logarithms of sizes; or, for boxes, those of their overlap with the truth (Rezatofighi et al.
// 2019, arXiv 1902.09630).
// inputs, outputs, further attributes: see grid_loss.h; attributes: every (width and height of each anchor of all
// planes, in pixels of this one), mask (which of them are `anchors`), squared (slopes are those of squared differences,
// not of cross-entropies), focal, overlaps (slopes of boxes are those of their overlap), enclosed (also of how much of
// the box around both they cover), overlap_scale.
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
        overlaps_ = attributes.flag("overlaps");
        enclosed_ = attributes.flag("enclosed");
        overlap_scale_ = float(attributes.real("overlap_scale"));
    }

private:
    void compare(int64_t n, const std::vector<Truth>& truths) const override {
        for (int64_t box = 0; box < grid_.boxes(); box++) {
            if (covers_one(n, box, truths)) continue;
            slope(n, box, AnchorGrid::object) = sigmoid(prediction(n, box, AnchorGrid::object));
        }
        for (const Truth& truth : truths) expect(n, truth);
    }

    void expect(int64_t n, const Truth& truth) const {
        const int64_t box = claimed(truth);
        if (box < 0) return;
        if (!overlaps_) expect_box(n, box, truth.box);
        slope(n, box, AnchorGrid::object) = object_scale_ * (sigmoid(prediction(n, box, AnchorGrid::object)) - 1);
        expect_class(n, box, truth.label - 1);
    }

    // Returns the box in whose pixel the truth has its center, for the anchor closest to its size; -1 if that is
    // another plane's, or the truth has no area.
    int64_t claimed(const Truth& truth) const {
        if (!(truth.box.width() > 0 && truth.box.height() > 0)) return -1;
        const auto anchor = std::find(mask_.begin(), mask_.end(), closest(truth.box)) - mask_.begin();
        if (anchor == int64_t(mask_.size())) return -1;
        const Place place = this->place(truth.box);
        return grid_.box_of(anchor, place.row, place.column);
    }

    void expect_box(int64_t n, int64_t box, const Box& truth) const {
        const Place place = this->place(truth);
        const AnchorGrid::Size size = grid_.size(box / (grid_.height * grid_.width));
        const float scale = coord_scale_ * (2 - truth.width() * truth.height());
        slope(n, box, 0) = scale * (sigmoid(prediction(n, box, 0)) - place.x);
        slope(n, box, 1) = scale * (sigmoid(prediction(n, box, 1)) - place.y);
        slope(n, box, 2) = scale * (prediction(n, box, 2) - std::log(truth.width() / size.width));
        slope(n, box, 3) = scale * (prediction(n, box, 3) - std::log(truth.height() / size.height));
    }

    // Sets the slopes of classes. A box that another truth of the image has claimed keeps the slopes of that one's
    // class.
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

    // Returns how much a class with probability p counts: half the slope of the focal loss with gamma 2.
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

    double finish(int64_t n, const std::vector<Truth>& truths) const override {
        if (overlaps_) return widen_overlaps(n, truths);
        for (int64_t box = 0; squared_ && box < grid_.boxes(); box++) {
            for (int64_t k = 0; k < AnchorGrid::first_class + grid_.classes; k++) {
                if (k == 2 || k == 3) continue;
                const float p = sigmoid(prediction(n, box, k));
                slope(n, box, k) *= p * (1 - p);
            }
        }
        return 0;
    }

    // Sets the slopes of boxes to those of their overlaps. Returns the loss of these. As in the fork, slopes are those
    // of a pixel and an anchor as large as the picture.
    double widen_overlaps(int64_t n, const std::vector<Truth>& truths) const {
        double missing = 0;
        for (const Truth& truth : truths) {
            const int64_t box = claimed(truth);
            if (box < 0) continue;
            const Box predicted = grid_.decode(input(0)->data(), n, box);
            const Slopes along = overlap_slopes(predicted, truth.box);
            slope(n, box, 0) = -overlap_scale_ * (along.left + along.right);
            slope(n, box, 1) = -overlap_scale_ * (along.top + along.bottom);
            slope(n, box, 2) = -overlap_scale_ * (along.right - along.left) / 2 * std::exp(prediction(n, box, 2));
            slope(n, box, 3) = -overlap_scale_ * (along.bottom - along.top) / 2 * std::exp(prediction(n, box, 3));
            missing += 1 - covered(predicted, truth.box);
        }
        return overlap_scale_ * missing;
    }

    // The slopes of the overlap with respect to the edges of a box.
    struct Slopes {
        float left, top, right, bottom;
    };

    Slopes overlap_slopes(const Box& box, const Box& truth) const {
        // Of boxes that are apart, the fork's intersection is the product of the gaps between them.
        const double width = std::min(box.x2, truth.x2) - std::max(box.x1, truth.x1);
        const double height = std::min(box.y2, truth.y2) - std::max(box.y1, truth.y1);
        const double shared = width * height, both = area(box) + area(truth) - shared;
        const Box hull = around(box, truth);
        const double whole = area(hull);
        // of_shared, of_own, of_whole: the slopes of the areas.
        const auto slope = [&](double of_shared, double of_own, double of_whole) {
            const double of_both = of_own - of_shared;
            double sum = both > 0 ? (both * of_shared - shared * of_both) / (both * both) : 0;
            if (enclosed_ && whole > 0) sum += (whole * of_both - both * of_whole) / (whole * whole);
            return float(sum);
        };
        return {slope(box.x1 > truth.x1 ? -height : 0, -box.height(), box.x1 < truth.x1 ? -hull.height() : 0),
                slope(box.y1 > truth.y1 ? -width : 0, -box.width(), box.y1 < truth.y1 ? -hull.width() : 0),
                slope(box.x2 < truth.x2 ? height : 0, box.height(), box.x2 > truth.x2 ? hull.height() : 0),
                slope(box.y2 < truth.y2 ? width : 0, box.width(), box.y2 > truth.y2 ? hull.width() : 0)};
    }

    // Returns the overlap of two boxes, minus the share of the box around both that they do not cover.
    static double covered(const Box& box, const Box& truth) {
        const Box common{std::max(box.x1, truth.x1), std::max(box.y1, truth.y1), std::min(box.x2, truth.x2),
                         std::min(box.y2, truth.y2)};
        const double shared = area(common), both = area(box) + area(truth) - shared, whole = area(around(box, truth));
        return shared / both - (whole - both) / whole;
    }

    // Returns the area in double, because squares of areas that float can hold may be too large for it.
    static double area(const Box& box) {
        return box.x2 < box.x1 || box.y2 < box.y1 ? 0 : double(box.width()) * double(box.height());
    }

    static Box around(const Box& a, const Box& b) {
        return {std::min(a.x1, b.x1), std::min(a.y1, b.y1), std::max(a.x2, b.x2), std::max(a.y2, b.y2)};
    }

    double shown(double sum) const override { return sum / double(images_); }

    AnchorGrid every_;
    std::vector<int64_t> mask_;
    bool squared_, focal_, overlaps_, enclosed_;
    float overlap_scale_;
};

static const RegisterOp<Yolov3> registered("Yolov3");

}  // namespace
}  // namespace engine
