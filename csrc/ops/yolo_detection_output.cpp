// Computes detections from the predictions of a YOLO detector, of one plane or several: each box has its best class,
// and of boxes that overlap, whatever their classes, only the best is kept. It has no backward.
// inputs: predictions (N, anchors * (5 + classes), H, W) of each plane, float32, row-major; outputs: (1, 1, N * boxes,
// 7): image, label from 1, score, x1, y1, x2, y2, ordered by image and score; unused rows are -1; attributes: classes,
// anchors (width and height of each, in pixels of its plane, for all planes), softmax (of the classes; without it a
// sigmoid of each), confidence_threshold (scores above it count), nms_threshold (boxes that overlap by more are
// dropped).
#include "kernels/anchor_grid.h"
#include "ops/common/onednn_util.h"

namespace engine {
namespace {

class YoloDetectionOutput : public Op {
public:
    explicit YoloDetectionOutput(OpSpec spec) : Op(std::move(spec)) {
        const auto& attributes = spec_.attributes;
        softmax_ = attributes.flag("softmax");
        least_ = float(attributes.real("confidence_threshold"));
        nms_ = float(attributes.real("nms_threshold"));
        const std::vector<double> sizes = attributes.reals("anchors");
        const size_t planes = spec_.inputs.size(), each = sizes.size() / planes;
        for (size_t i = 0; i < planes; i++) {
            const auto first = sizes.begin() + int64_t(i * each);
            const auto& shape = input(i)->shape;
            grids_.emplace_back(attributes.integer("classes"), shape[2], shape[3],
                                std::vector<double>(first, first + int64_t(each)));
        }
        found_.resize(input(0)->shape[0]);
        output(0, plain_layout(spec_.output_shapes[0]));
        for (size_t i = 0; i < planes; i++) touch(Pass::forward, {input(i)});
        touch(Pass::forward, {outputs_[0]});
    }

    void forward(const dnnl::stream&) override {
#pragma omp parallel for schedule(dynamic)
        for (size_t n = 0; n < found_.size(); n++) found_[n] = detect(int64_t(n));
        float* row = outputs_[0]->data();
        std::fill_n(row, outputs_[0]->count(), -1.f);
        for (size_t n = 0; n < found_.size(); n++) {
            const Detections& found = found_[n];
            for (const int64_t i : found.kept) {
                const Box& box = found.boxes[i];
                const float values[columns]{float(n), float(found.labels[i]), found.scores[i], box.x1, box.y1, box.x2,
                                            box.y2};
                row = std::copy_n(values, columns, row);
            }
        }
    }

private:
    static constexpr int columns = 7;

    struct Detections {
        std::vector<Box> boxes;
        std::vector<float> scores;
        std::vector<int64_t> labels, kept;  // kept: which of them stay, by score
    };

    Detections detect(int64_t n) const {
        Detections found;
        for (size_t i = 0; i < grids_.size(); i++) {
            const AnchorGrid& grid = grids_[i];
            const float* const predictions = input(i)->data();
            for (int64_t box = 0; box < grid.boxes(); box++) {
                const float object = sigmoid(predictions[grid.at(n, box, AnchorGrid::object)]);
                if (!(object > least_)) continue;  // whatever its class: probabilities are at most 1
                const int64_t best = grid.best_class(predictions, n, box);
                const float score = object * probability(grid, predictions, n, box, best);
                if (!(score > least_)) continue;
                found.boxes.push_back(grid.decode(predictions, n, box));
                found.scores.push_back(score);
                found.labels.push_back(best + 1);
            }
        }
        found.kept = suppress(found.boxes, found.scores, least_, -1, nms_, 1);
        return found;
    }

    float probability(const AnchorGrid& grid, const float* predictions, int64_t n, int64_t box, int64_t best) const {
        const float score = predictions[grid.at(n, box, AnchorGrid::first_class + best)];
        if (!softmax_) return sigmoid(score);
        double sum = 0;
        for (int64_t c = 0; c < grid.classes; c++)
            sum += std::exp(predictions[grid.at(n, box, AnchorGrid::first_class + c)] - score);
        return float(1 / sum);
    }

    bool softmax_;
    float least_, nms_;
    std::vector<AnchorGrid> grids_;
    std::vector<Detections> found_;  // in each image
};

static const RegisterOp<YoloDetectionOutput> registered("YoloDetectionOutput");

}  // namespace
}  // namespace engine
