// Tells which detections are right. From the best down, each claims the box of its label that it overlaps most, if they
// overlap enough and no other has claimed it. It has no backward.
// inputs: detections (1, 1, K, 7): image, label, confidence, x1, y1, x2, y2; ground truth (1, 1, M, 8); both float32,
// row-major; outputs: (1, 1, rows, 5): a row (-1, label, boxes of that label, -1, -1) for each class but the
// background, then (image, label, confidence, right, wrong) for each detection, then unused rows of -1; attributes:
// classes, background, overlap_threshold, evaluate_difficult.
#include <algorithm>

#include "kernels/boxes.h"
#include "kernels/whole.h"
#include "ops/common/onednn_util.h"

namespace engine {
namespace {

class DetectionEvaluate : public Op {
public:
    explicit DetectionEvaluate(OpSpec spec) : Op(std::move(spec)) {
        const auto& attributes = spec_.attributes;
        classes_ = attributes.integer("classes");
        background_ = attributes.integer("background");
        threshold_ = float(attributes.real("overlap_threshold"));
        evaluate_difficult_ = attributes.flag("evaluate_difficult");
        output(0, plain_layout(spec_.output_shapes[0]));
        touch(Pass::forward, {input(0), input(1), outputs_[0]});
    }

    void forward(const dnnl::stream&) override {
        const Truths truths = read_truths(spec_.name, input(1)->data(), input(1)->shape[2], classes_, background_);
        std::fill_n(outputs_[0]->data(), outputs_[0]->count(), -1.f);
        row_ = outputs_[0]->data();
        for (int64_t label = 0; label < classes_; label++)
            if (label != background_) write(-1, label, float(boxes_of(truths, label)), -1, -1);
        for (auto& [which, found] : read_detections()) {
            std::vector<Truth> wanted;
            const auto image = truths.find(which.first);
            if (image != truths.end())
                for (const Truth& truth : image->second)
                    if (truth.label == which.second) wanted.push_back(truth);
            judge(which.first, which.second, found, wanted);
        }
    }

private:
    struct Detection {
        float score;
        Box box;
    };
    using Detections = std::map<std::pair<int64_t, int64_t>, std::vector<Detection>>;  // by image and label

    void write(int64_t image, int64_t label, float value, float right, float wrong) {
        for (const float each : {float(image), float(label), value, right, wrong}) *row_++ = each;
    }

    int64_t boxes_of(const Truths& truths, int64_t label) const {
        int64_t count = 0;
        for (const auto& image : truths)
            for (const Truth& truth : image.second)
                count += truth.label == label && (evaluate_difficult_ || !truth.difficult);
        return count;
    }

    Detections read_detections() const {
        Detections detections;
        const float* row = input(0)->data();
        for (int64_t i = 0; i < input(0)->shape[2]; i++, row += 7)
            if (row[0] >= 0 && row[1] >= 0)
                detections[{whole(row[0]), whole(row[1])}].push_back({row[2], Box::at(row + 3)});
        return detections;
    }

    // Writes a row for each detection of a label in an image. wanted: the true boxes of that label.
    void judge(int64_t image, int64_t label, std::vector<Detection>& found, const std::vector<Truth>& wanted) {
        if (!wanted.empty())
            std::stable_sort(found.begin(), found.end(),
                             [](const Detection& a, const Detection& b) { return a.score > b.score; });
        std::vector<bool> claimed(wanted.size());
        for (const Detection& each : found) {
            float most = -1;
            size_t which = 0;
            for (size_t i = 0; i < wanted.size(); i++) {
                const float shared = overlap(each.box, wanted[i].box);
                if (shared > most) {
                    most = shared;
                    which = i;
                }
            }
            if (wanted.empty() || most < threshold_) {
                write(image, label, each.score, 0, 1);
            } else if (wanted[which].difficult && !evaluate_difficult_) {
                write(image, label, each.score, 0, 0);  // neither right nor wrong
            } else {
                write(image, label, each.score, !claimed[which], claimed[which]);
                claimed[which] = true;
            }
        }
    }

    int64_t classes_, background_;
    float threshold_;
    bool evaluate_difficult_;
    float* row_ = nullptr;  // the next row of the top to write
};

static const RegisterOp<DetectionEvaluate> registered("DetectionEvaluate");

}  // namespace
}  // namespace engine
