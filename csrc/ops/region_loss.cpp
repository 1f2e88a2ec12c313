// The loss of a YOLO detector: the sum of the squares of its gradient before that is divided by N, as in the original,
// which shows this number and descends along that gradient.
// inputs: predictions (N, anchors * (5 + classes), H, W), ground truth (1, 1, M, 8) with labels from 1, both row-major;
// output: (); attributes: classes, anchors (width and height of each, in pixels of the plane); bias_match,
// object_scale, noobject_scale, class_scale, coord_scale, threshold, loss_weight.
#include "kernels/anchor_grid.h"
#include "kernels/whole.h"
#include "ops/common/onednn_util.h"

namespace engine {
namespace {

class RegionLoss : public Op {
public:
    explicit RegionLoss(OpSpec spec)
        : Op(std::move(spec)),
          grid_(spec_.attributes.integer("classes"), input(0)->shape[2], input(0)->shape[3],
                spec_.attributes.reals("anchors")) {
        const auto& attributes = spec_.attributes;
        bias_match_ = attributes.flag("bias_match");
        object_scale_ = float(attributes.real("object_scale"));
        noobject_scale_ = float(attributes.real("noobject_scale"));
        class_scale_ = float(attributes.real("class_scale"));
        coord_scale_ = float(attributes.real("coord_scale"));
        threshold_ = float(attributes.real("threshold"));
        images_ = input(0)->shape[0];
        sums_.resize(images_);
        make_loss();
        slopes_ = workspace("slopes", input(0)->layout);
        touch(Pass::forward, {input(0), input(1), slopes_});
        if (!input_gradient(0)) return;
        touch(Pass::backward, {slopes_, input(0)->diff});
        may_overwrite(Pass::backward, slopes_, input(0)->diff);
    }

    void forward(const dnnl::stream&) override {
        const Truths truths = read_truths(spec_.name, input(1)->data(), input(1)->shape[2], grid_.classes + 1, 0);
        const int64_t row = input(0)->count() / images_;
#pragma omp parallel for schedule(dynamic)
        for (int64_t n = 0; n < images_; n++) {
            float* const slopes = slopes_->data() + n * row;
            std::fill_n(slopes, row, 0.f);
            const auto found = truths.find(n);
            const std::vector<Truth> boxes = found == truths.end() ? std::vector<Truth>() : found->second;
            expect_nothing(n, boxes);
            for (const Truth& truth : boxes) expect(n, truth);
            sums_[n] = 0;
            for (int64_t i = 0; i < row; i++) sums_[n] += double(slopes[i]) * double(slopes[i]);
        }
        double sum = 0;  // in the order of images, whatever the number of threads
        for (double each : sums_) sum += each;
        outputs_[0]->data()[0] = float(sum);
    }

    void backward(const dnnl::stream&) override {
        const int64_t count = input(0)->count();
        const float* const slopes = slopes_->data();
        float* const diff = input(0)->diff->data();
        const float scale = float(loss_gradient() / double(images_));
#pragma omp parallel for simd
        for (int64_t i = 0; i < count; i++) diff[i] = scale * slopes[i];
    }

private:
    float& slope(int64_t n, int64_t box, int64_t k) const { return slopes_->data()[grid_.at(n, box, k)]; }
    float prediction(int64_t n, int64_t box, int64_t k) const { return input(0)->data()[grid_.at(n, box, k)]; }

    // No object, scale p^2 / 2, where a box covers none of the truth well.
    void expect_nothing(int64_t n, const std::vector<Truth>& truths) const {
        for (int64_t box = 0; box < grid_.boxes(); box++) {
            const Box predicted = grid_.decode(input(0)->data(), n, box);
            const auto covers = [&](const Truth& truth) { return overlap(predicted, truth.box) > threshold_; };
            if (std::any_of(truths.begin(), truths.end(), covers)) continue;
            const float p = sigmoid(prediction(n, box, AnchorGrid::object));
            slope(n, box, AnchorGrid::object) = noobject_scale_ * p * p * (1 - p);
        }
    }

    // An object, scale (1 - p)^4 / 2, its place and its class, of the box in whose pixel the truth has its center and
    // whose anchor, or without bias_match whose predicted size, comes closest.
    void expect(int64_t n, const Truth& truth) const {
        const float x = (truth.box.x1 + truth.box.x2) / 2, y = (truth.box.y1 + truth.box.y2) / 2;
        const int64_t column = std::clamp<int64_t>(whole(x * float(grid_.width)), 0, grid_.width - 1);
        const int64_t row = std::clamp<int64_t>(whole(y * float(grid_.height)), 0, grid_.height - 1);
        const int64_t anchor = closest(n, truth.box, row, column), box = grid_.box_of(anchor, row, column);
        const AnchorGrid::Size size = grid_.size(anchor);
        expect_offset(n, box, 0, x * float(grid_.width) - float(column));
        expect_offset(n, box, 1, y * float(grid_.height) - float(row));
        expect_offset(n, box, 2, std::log(truth.box.width() / size.width));
        expect_offset(n, box, 3, std::log(truth.box.height() / size.height));
        const float p = sigmoid(prediction(n, box, AnchorGrid::object)), rest = 1 - p;
        slope(n, box, AnchorGrid::object) = -2 * object_scale_ * rest * rest * rest * p * rest;
        std::vector<float> classes(grid_.classes);
        grid_.probabilities(input(0)->data(), n, box, classes.data());
        for (int64_t c = 0; c < grid_.classes; c++)
            slope(n, box, AnchorGrid::first_class + c) = class_scale_ * (classes[c] - float(c == truth.label - 1));
    }

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

    // The rounded absolute difference to `wanted`, of a sigmoid for x and y.
    void expect_offset(int64_t n, int64_t box, int64_t k, float wanted) const {
        const float raw = prediction(n, box, k), value = k < 2 ? sigmoid(raw) : raw;
        const float inner = k < 2 ? value * (1 - value) : 1;
        slope(n, box, k) = coord_scale_ * std::clamp(value - wanted, -1.f, 1.f) * inner;
    }

    AnchorGrid grid_;
    bool bias_match_;
    float object_scale_, noobject_scale_, class_scale_, coord_scale_, threshold_;
    int64_t images_;
    TensorPtr slopes_;  // the gradient before it is divided by N
    std::vector<double> sums_;
};

static const RegisterOp<RegionLoss> registered("RegionLoss");

}  // namespace
}  // namespace engine
