// Measures how well the signs of scores agree with those of labels: the share of positive labels that are found
// (recall), that of negative ones (specificity), the harmonic mean of these two, the share of found positives that are
// right (precision), and the harmonic mean of recall and precision (F1). A measure of no labels is 0. A label of 0 does
// not count. It has no backward.
// inputs: scores, labels (as many), both float32, row-major; outputs: the five (1, 5, 1, 1).
#include "kernels/chunks.h"
#include "ops/common/onednn_util.h"

namespace engine {
namespace {

class MultiLabelAccuracy : public Op {
public:
    explicit MultiLabelAccuracy(OpSpec spec) : Op(std::move(spec)) {
        output(0, plain_layout(spec_.output_shapes[0]));
        touch(Pass::forward, {input(0), input(1), outputs_[0]});
    }

    void forward(const dnnl::stream&) override {
        const float *const scores = input(0)->data(), *const labels = input(1)->data();
        const int64_t count = input(0)->count();
        int64_t positive = 0, negative = 0, found = 0, rejected = 0;  // found, rejected: the right ones
#pragma omp parallel for reduction(+ : positive, negative, found, rejected) if (count > chunk_size)
        for (int64_t i = 0; i < count; i++) {
            positive += labels[i] > 0;
            negative += labels[i] < 0;
            found += labels[i] > 0 && scores[i] >= 0;
            rejected += labels[i] < 0 && scores[i] < 0;
        }
        const double recall = share(found, positive), specificity = share(rejected, negative);
        const double precision = share(found, found + negative - rejected);
        float* const top = outputs_[0]->data();
        top[0] = float(recall);
        top[1] = float(specificity);
        top[2] = float(harmonic_mean(recall, specificity));
        top[3] = float(precision);
        top[4] = float(harmonic_mean(recall, precision));
    }

private:
    static double share(int64_t some, int64_t all) { return all > 0 ? double(some) / double(all) : 0; }

    static double harmonic_mean(double a, double b) { return a + b > 0 ? 2 * a * b / (a + b) : 0; }
};

static const RegisterOp<MultiLabelAccuracy> registered("MultiLabelAccuracy");

}  // namespace
}  // namespace engine
