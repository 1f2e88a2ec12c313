// Computes what a region proposal network is to predict for each anchor (Ren et al. 2015, Faster R-CNN). It has no
// backward.
// inputs: scores (1, 2 A, H, W), of which only the shape is read; truth (G, 5), see region_sampling.h; image size
// (height, width, ...); all float32, row-major; outputs: labels (1, 1, A H, W), 1, 0, or -1 for anchors that do not
// count; offsets, their weights inside and outside of the loss (1, 4 A, H, W each); attributes: anchors (A times x1,
// y1, x2, y2), stride, border (pixels by which anchors may leave the image), batch_size (the most anchors that count),
// positives (the most with label 1), positive_overlap, negative_overlap, clobber (label 0 wins over 1), positive_weight
// (of all positives together; below 0: all anchors count alike), inside_weights (4).
#include "ops/common/onednn_util.h"
#include "ops/common/region_sampling.h"

namespace engine {
namespace {

class AnchorTarget : public Op {
public:
    explicit AnchorTarget(OpSpec spec)
        : Op(std::move(spec)),
          key_(spec_.name),
          height_(input(0)->shape.at(2)),
          width_(input(0)->shape.at(3)),
          truths_(input(1)->count() / true_box_columns) {
        for (const double value : spec_.attributes.reals("anchors")) anchors_.push_back(float(value));
        for (const double value : spec_.attributes.reals("inside_weights")) inside_.push_back(float(value));
        each_ = int64_t(anchors_.size()) / 4;
        const int64_t count = each_ * height_ * width_;
        labels_.resize(count);
        best_.resize(count);
        largest_.resize(count);
        boxes_.resize(count * 4);
        for (auto* numbers : {&positives_, &negatives_}) numbers->reserve(count);
        drawn_.reserve(count);
        for (size_t i = 0; i < outputs_.size(); i++)
            touch(Pass::forward, output(i, plain_layout(spec_.output_shapes[i])));
        for (const auto& each : spec_.inputs) touch(Pass::forward, each);
    }

    void forward(const dnnl::stream&) override {
        place_anchors();
        compare();
        choose();
        write();
    }

private:
    // Sets boxes_. Anchors are numbered pixel by pixel, and at a pixel in the order of the attribute.
    void place_anchors() {
        const double stride = spec_.attributes.real("stride");
        for (int64_t i = 0; i < int64_t(labels_.size()); i++) {
            const int64_t pixel = i / each_, which = i % each_;
            const double move[2] = {double(pixel % width_) * stride, double(pixel / width_) * stride};
            for (int64_t k = 0; k < 4; k++) boxes_[i * 4 + k] = float(anchors_[which * 4 + k] + move[k % 2]);
        }
    }

    // Sets best_, largest_ and labels_ by the overlap with the true boxes.
    void compare() {
        const double border = spec_.attributes.real("border");
        const double height = input(2)->data()[0] + border, width = input(2)->data()[1] + border;
        const double negative = spec_.attributes.real("negative_overlap");
        const double positive = spec_.attributes.real("positive_overlap");
        const bool clobber = spec_.attributes.flag("clobber");
        const float* const truth = input(1)->data();
        const auto count = int64_t(labels_.size());
        for (int64_t i = 0; i < count; i++) {
            const float* const box = &boxes_[i * 4];
            const bool inside = box[0] >= -border && box[1] >= -border && box[2] < width && box[3] < height;
            labels_[i] = inside ? -1 : outside;
            best_[i] = -1;
            largest_[i] = 0;
            for (int64_t g = 0; inside && g < truths_; g++) {
                if (!(truth[g * true_box_columns + 4] > 0)) continue;
                const double both = overlap(box, truth + g * true_box_columns);
                if (best_[i] < 0 || both > largest_[i]) {
                    largest_[i] = both;
                    best_[i] = g;
                }
            }
            if (inside && !clobber && largest_[i] < negative) labels_[i] = 0;
        }
        for (int64_t g = 0; g < truths_; g++) mark_nearest(truth + g * true_box_columns);
        for (int64_t i = 0; i < count; i++) {
            if (labels_[i] == outside) continue;
            if (best_[i] >= 0 && largest_[i] >= positive) labels_[i] = 1;
            if (clobber && largest_[i] < negative) labels_[i] = 0;
        }
    }

    // Labels the anchors, one or several, that overlap a true box most.
    void mark_nearest(const float* truth) {
        if (!(truth[4] > 0)) return;
        double most = 0;
        for (int64_t i = 0; i < int64_t(labels_.size()); i++)
            if (labels_[i] != outside) most = std::max(most, overlap(&boxes_[i * 4], truth));
        if (most <= 0) return;
        for (int64_t i = 0; i < int64_t(labels_.size()); i++)
            if (labels_[i] != outside && overlap(&boxes_[i * 4], truth) == most) labels_[i] = 1;
    }

    // Keeps the labels of a random choice of anchors, and sets all others to -1.
    void choose() {
        const Counter& counter = *spec_.counter;
        const DropoutMask random = key_.of(counter.seed, counter.step, counter.first_sample);
        positives_.clear();
        negatives_.clear();
        for (int64_t i = 0; i < int64_t(labels_.size()); i++) {
            if (labels_[i] == 1) positives_.push_back(i);
            if (labels_[i] == 0) negatives_.push_back(i);
            labels_[i] = -1;
        }
        const int64_t batch = spec_.attributes.integer("batch_size");
        sample(positives_, spec_.attributes.integer("positives"), random, drawn_);
        sample(negatives_, batch - int64_t(positives_.size()), random, drawn_);
        for (const int64_t i : positives_) labels_[i] = 1;
        for (const int64_t i : negatives_) labels_[i] = 0;
    }

    void write() const {
        const auto positives = double(positives_.size()), negatives = double(negatives_.size());
        const double share = spec_.attributes.real("positive_weight");
        const double every = positives + negatives > 0 ? 1 / (positives + negatives) : 0;
        const double of_positive = share < 0 ? every : positives > 0 ? share / positives : 0;
        const double of_negative = share < 0 ? every : negatives > 0 ? (1 - share) / negatives : 0;
        const int64_t plane = height_ * width_;
        for (int64_t i = 0; i < int64_t(labels_.size()); i++) {
            const int64_t pixel = i / each_, which = i % each_;
            outputs_[0]->data()[which * plane + pixel] = float(labels_[i]);
            float offsets[4] = {};
            if (best_[i] >= 0) box_offsets(&boxes_[i * 4], input(1)->data() + best_[i] * true_box_columns, offsets);
            const double outer = labels_[i] == 1 ? of_positive : labels_[i] == 0 ? of_negative : 0;
            for (int64_t k = 0; k < 4; k++) {
                const int64_t at = (which * 4 + k) * plane + pixel;
                outputs_[1]->data()[at] = offsets[k];
                outputs_[2]->data()[at] = labels_[i] == 1 ? inside_[k] : 0.f;
                outputs_[3]->data()[at] = float(outer);
            }
        }
    }

    static constexpr int outside = -2;  // the label of an anchor that leaves the image too far

    DropoutMasks key_;
    int64_t height_, width_, truths_, each_ = 0;
    std::vector<float> anchors_, inside_, boxes_;
    std::vector<int> labels_;
    std::vector<int64_t> best_, positives_, negatives_;  // best_: the true box that an anchor overlaps most, or -1
    std::vector<double> largest_;                        // the overlap with it
    std::vector<std::pair<uint32_t, int64_t>> drawn_;
};

static const RegisterOp<AnchorTarget> registered("AnchorTarget");

}  // namespace
}  // namespace engine
