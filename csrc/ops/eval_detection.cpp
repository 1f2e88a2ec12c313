// Tells which detections of a YOLO detector are right. It has no backward.
// inputs: predictions (N, anchors * (5 + classes), H, W), ground truth (1, 1, M, 8) with labels from 1, both float32,
// row-major; outputs: (N, classes + boxes * 4): how many true boxes of each class there are, then label (from 0),
// score, right, wrong of each detection, ordered by label and score, then zeros; attributes: classes, anchors (width
// and height of each, in pixels of the plane), threshold (the least overlap of a right one), nms (negative: none),
// score (OBJ, PROB, MULTIPLY).
#include <cfloat>

#include "kernels/anchor_grid.h"
#include "ops/common/onednn_util.h"

namespace engine {
namespace {

class EvalDetection : public Op {
public:
    explicit EvalDetection(OpSpec spec)
        : Op(std::move(spec)),
          grid_(spec_.attributes.integer("classes"), input(0)->shape[2], input(0)->shape[3],
                spec_.attributes.reals("anchors")),
          threshold_(float(spec_.attributes.real("threshold"))),
          nms_(float(spec_.attributes.real("nms"))),
          by_object_(spec_.attributes.text("score") != "PROB"),
          by_class_(spec_.attributes.text("score") != "OBJ") {
        output(0, plain_layout(spec_.output_shapes[0]));
        touch(Pass::forward, {input(0), input(1), outputs_[0]});
    }

    void forward(const dnnl::stream&) override {
        const Truths truths = read_truths(spec_.name, input(1)->data(), input(1)->shape[2], grid_.classes + 1, 0);
        std::fill_n(outputs_[0]->data(), outputs_[0]->count(), 0.f);
        const int64_t images = input(0)->shape[0], row = outputs_[0]->shape[1];
#pragma omp parallel for schedule(dynamic)
        for (int64_t n = 0; n < images; n++) {
            const auto found = truths.find(n);
            judge(n, found == truths.end() ? std::vector<Truth>() : found->second, outputs_[0]->data() + n * row);
        }
    }

private:
    static constexpr float least_score = 0.005f;

    struct Detections {
        std::vector<Box> boxes;
        std::vector<float> scores;
        std::vector<int64_t> labels;
    };

    Detections decode(int64_t n) const {
        const float* const predictions = input(0)->data();
        Detections found;
        std::vector<float> p(grid_.classes);
        for (int64_t box = 0; box < grid_.boxes(); box++) {
            grid_.probabilities(predictions, n, box, p.data());
            const auto best = std::max_element(p.begin(), p.end());
            const float object = sigmoid(predictions[grid_.at(n, box, AnchorGrid::object)]);
            found.boxes.push_back(grid_.decode(predictions, n, box));
            found.scores.push_back((by_object_ ? object : 1) * (by_class_ ? *best : 1));
            found.labels.push_back(best - p.begin());
        }
        return found;
    }

    // Writes the row of the top of image n.
    void judge(int64_t n, const std::vector<Truth>& truths, float* top) const {
        for (const Truth& truth : truths) top[truth.label - 1]++;
        float* row = top + grid_.classes;
        const Detections found = decode(n);
        // Boxes suppress each other whatever their classes, and even if they overlap by exactly `nms`.
        const float limit = nms_ < 0 ? FLT_MAX : std::nextafter(nms_, -1.f);
        std::vector<int64_t> order = suppress(found.boxes, found.scores, -FLT_MAX, -1, limit, 1);
        std::stable_sort(order.begin(), order.end(),
                         [&](int64_t a, int64_t b) { return found.labels[a] < found.labels[b]; });
        std::vector<bool> claimed(truths.size());
        for (const int64_t i : order) {
            if (found.scores[i] < least_score) continue;
            float most = -1;
            size_t which = 0;
            for (size_t t = 0; t < truths.size(); t++) {
                const float shared = overlap(found.boxes[i], truths[t].box);
                if (truths[t].label - 1 != found.labels[i] || shared <= most) continue;
                most = shared;
                which = t;
            }
            const bool right = most >= std::max(threshold_, 0.f) && !claimed[which];  // most < 0: no box of its class
            if (right) claimed[which] = true;
            for (const float value : {float(found.labels[i]), found.scores[i], float(right), float(!right)})
                *row++ = value;
        }
    }

    AnchorGrid grid_;
    float threshold_, nms_;
    bool by_object_, by_class_;
};

static const RegisterOp<EvalDetection> registered("EvalDetection");

}  // namespace
}  // namespace engine
