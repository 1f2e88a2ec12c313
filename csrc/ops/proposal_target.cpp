// Chooses regions for a detector to learn from, some of objects, others of the background, and computes what it is to
// predict for them (Girshick 2015, Fast R-CNN; Ren et al. 2015, Faster R-CNN). If there are fewer than B, they are
// repeated. It has no backward.
// inputs: regions (R, 5): image, x1, y1, x2, y2, unused if the image is negative; truth (G, 5), see region_sampling.h;
// both float32, row-major; outputs: regions (B, 5), labels (B), offsets (B, 4 classes), their weights inside and
// outside of the loss (as the offsets); attributes: classes, objects (the most of them), object_overlap (the least of
// an object), least_overlap and most_overlap (of the background), means, deviations and inside_weights (4 each).
#include "kernels/whole.h"
#include "ops/common/onednn_util.h"
#include "ops/common/region_sampling.h"

namespace engine {
namespace {

class ProposalTarget : public Op {
public:
    explicit ProposalTarget(OpSpec spec)
        : Op(std::move(spec)),
          key_(spec_.name),
          classes_(spec_.attributes.integer("classes")),
          batch_(spec_.output_shapes.at(0).at(0)),
          regions_(input(0)->count() / 5),
          truths_(input(1)->count() / true_box_columns) {
        for (const double value : spec_.attributes.reals("means")) means_.push_back(float(value));
        for (const double value : spec_.attributes.reals("deviations")) deviations_.push_back(float(value));
        for (const double value : spec_.attributes.reals("inside_weights")) inside_.push_back(float(value));
        const int64_t most = regions_ + truths_;
        boxes_.reserve(most * 4);
        best_.reserve(most);
        for (auto* numbers : {&objects_, &others_, &chosen_}) numbers->reserve(most + batch_);
        drawn_.reserve(most);
        for (size_t i = 0; i < outputs_.size(); i++)
            touch(Pass::forward, output(i, plain_layout(spec_.output_shapes[i])));
        for (const auto& each : spec_.inputs) touch(Pass::forward, each);
    }

    void forward(const dnnl::stream&) override {
        collect();
        compare();
        choose();
        for (int64_t row = 0; row < batch_; row++) write(row);
    }

private:
    // Sets boxes_ to the used regions and the true boxes, which count as regions, too.
    void collect() {
        boxes_.clear();
        const float *const regions = input(0)->data(), *const truth = input(1)->data();
        for (int64_t i = 0; i < regions_; i++)
            if (regions[i * 5] >= 0) boxes_.insert(boxes_.end(), regions + i * 5 + 1, regions + i * 5 + 5);
        for (int64_t g = 0; g < truths_; g++)
            if (truth[g * true_box_columns + 4] > 0)
                boxes_.insert(boxes_.end(), truth + g * true_box_columns, truth + g * true_box_columns + 4);
    }

    // Divides the boxes into objects_ and others_ by their overlap with the true boxes.
    void compare() {
        const double of_objects = spec_.attributes.real("object_overlap");
        const double least = spec_.attributes.real("least_overlap"), most = spec_.attributes.real("most_overlap");
        const float* const truth = input(1)->data();
        best_.clear();
        objects_.clear();
        others_.clear();
        for (int64_t i = 0; i < int64_t(boxes_.size()) / 4; i++) {
            double largest = 0;
            int64_t best = -1;
            for (int64_t g = 0; g < truths_; g++) {
                if (!(truth[g * true_box_columns + 4] > 0)) continue;
                const double both = overlap(&boxes_[i * 4], truth + g * true_box_columns);
                if (best < 0 || both > largest) {
                    largest = both;
                    best = g;
                }
            }
            best_.push_back(best);
            if (best >= 0 && largest >= of_objects) objects_.push_back(i);
            if (largest < most && largest >= least) others_.push_back(i);
        }
    }

    void choose() {
        const Counter& counter = *spec_.counter;
        const DropoutMask random = key_.of(counter.seed, counter.step, counter.first_sample);
        sample(objects_, spec_.attributes.integer("objects"), random, drawn_);
        sample(others_, batch_ - int64_t(objects_.size()), random, drawn_);
        chosen_.clear();
        chosen_.insert(chosen_.end(), objects_.begin(), objects_.end());
        chosen_.insert(chosen_.end(), others_.begin(), others_.end());
    }

    void write(int64_t row) const {
        float* const region = outputs_[0]->data() + row * 5;
        const int64_t width = 4 * classes_;
        for (size_t i = 2; i < outputs_.size(); i++) std::fill_n(outputs_[i]->data() + row * width, width, 0.f);
        outputs_[1]->data()[row] = 0;
        if (chosen_.empty()) {  // the row is one pixel of background
            std::fill_n(region, 5, 0.f);
            return;
        }
        const auto at = size_t(row) % chosen_.size();
        const float* const box = &boxes_[chosen_[at] * 4];
        region[0] = 0;
        std::copy_n(box, 4, region + 1);
        if (at >= objects_.size()) return;
        const float* const truth = input(1)->data() + best_[chosen_[at]] * true_box_columns;
        const auto label = whole(std::min(truth[4], float(classes_ - 1)));
        outputs_[1]->data()[row] = float(label);
        float offsets[4];
        box_offsets(box, truth, offsets);
        for (int64_t k = 0; k < 4; k++) {
            const int64_t to = row * width + 4 * label + k;
            outputs_[2]->data()[to] = (offsets[k] - means_[k]) / deviations_[k];
            outputs_[3]->data()[to] = inside_[k];
            outputs_[4]->data()[to] = inside_[k] > 0 ? 1.f : 0.f;
        }
    }

    DropoutMasks key_;
    int64_t classes_, batch_, regions_, truths_;
    std::vector<float> means_, deviations_, inside_, boxes_;
    std::vector<int64_t> best_, objects_, others_, chosen_;  // best_: the true box that a region overlaps most
    std::vector<std::pair<uint32_t, int64_t>> drawn_;
};

static const RegisterOp<ProposalTarget> registered("ProposalTarget");

}  // namespace
}  // namespace engine
