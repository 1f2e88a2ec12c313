// Computes the loss of connectionist temporal classification (Graves et al. 2006): the mean over the sequences of -log
// p, where p is the probability that a sequence spells its labels. A path through the classes of the T softmaxes spells
// what is left of it without repetitions and then without blanks. As in Caffe's forks, the gradient is that of the sum
// over the sequences.
// inputs: scores (T, N, C), and either labels (N, L); or indicators (T, N), 0 where the next sequence begins, and
// labels (L, N), which end before a negative one; or lengths (N), numbers of labels (N) and labels (L, N); all float32,
// row-major; labels that are the blank are left out; outputs: loss (); attributes: loss_weight, blank, shift (added to
// labels), time (the length of all sequences, if the inputs do not give it).
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/vectorised.h"
#include "kernels/whole.h"
#include "ops/common/onednn_util.h"

namespace engine {
namespace {

constexpr double impossible = -std::numeric_limits<double>::infinity();

// Returns the logarithm of the sum of two probabilities, from their logarithms.
double either(double a, double b) {
    if (a < b) std::swap(a, b);
    return b == impossible ? a : a + std::log1p(std::exp(b - a));
}

// The logarithm of a sum of exponentials, most + rest. They are kept apart because a large `most` would take digits of
// the rest.
struct LogSum {
    float most;
    double rest;
};

ENGINE_VECTORISED static LogSum log_sum(const float* x, int64_t count) {
    float most = x[0], sum = 0;
#pragma omp simd reduction(max : most)
    for (int64_t i = 0; i < count; i++) most = std::max(most, x[i]);
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++) sum += expf(x[i] - most);
    return {most, std::log(double(sum))};
}

ENGINE_VECTORISED static void softmax(const float* x, const LogSum& sum, float scale, int64_t count, float* y) {
    const float most = sum.most, rest = float(sum.rest);
#pragma omp simd
    for (int64_t i = 0; i < count; i++) y[i] = scale * expf((x[i] - most) - rest);
}

class CTCLoss : public Op {
public:
    explicit CTCLoss(OpSpec spec)
        : Op(std::move(spec)),
          blank_(int32_t(spec_.attributes.integer("blank"))),
          shift_(float(spec_.attributes.integer("shift"))),
          longest_(spec_.attributes.integer("time")) {
        const Dims& shape = input(0)->shape;
        steps_ = shape[0];
        classes_ = shape[2];
        sequences_.resize(shape[1]);
        const TensorPtr& labels = spec_.inputs.back();
        most_labels_ = rows() ? labels->count() / shape[1] : labels->shape[0];
        make_loss();
        const int64_t places = 2 * std::min(most_labels_, longest_) + 1;
        paths_ = workspace("paths", plain_layout({shape[1], longest_ * places}, memory::data_type::f64));
        for (const auto& each : spec_.inputs) touch(Pass::forward, each);
        touch(Pass::forward, paths_);
        if (input_gradient(0)) touch(Pass::backward, {input(0), input(0)->diff, paths_});
    }

    void forward(const dnnl::stream&) override {
        const auto count = int64_t(sequences_.size());
        for (int64_t n = 0; n < count; n++) read(n);
#pragma omp parallel for schedule(static)
        for (int64_t n = 0; n < count; n++) follow(n);
        double sum = 0;
        for (const Sequence& sequence : sequences_) sum -= sequence.time > 0 ? sequence.log_probability : 0;
        outputs_[0]->data()[0] = float(sum / double(count));
    }

    void backward(const dnnl::stream&) override {
        const auto scale = float(loss_gradient());
#pragma omp parallel for schedule(static)
        for (int64_t n = 0; n < int64_t(sequences_.size()); n++) differentiate(n, scale);
    }

private:
    // What one sequence spells. A place is an index into `path`; probabilities are kept as their logarithms.
    struct Sequence {
        int64_t time;               // steps; 0: unused, or no possible path spells the labels
        std::vector<int32_t> path;  // the labels, a blank before each and one behind them
        std::vector<LogSum> sums;   // of each step's scores
        std::vector<double> from;   // by place: of all paths that go on from it after the current step
        double log_probability;
    };

    // Tells whether the labels of a sequence are a row of their blob; else they are a column.
    bool rows() const { return spec_.inputs.size() == 2; }

    // Returns the probabilities of all paths of a sequence up to a step that end at a place: (time, places).
    double* paths(int64_t n) const { return address<double>(paths_) + n * paths_->shape[1]; }

    const float* scores(int64_t t, int64_t n) const {
        return input(0)->data() + (t * int64_t(sequences_.size()) + n) * classes_;
    }

    // Returns the logarithm of the probability of a place's class at step t.
    double emission(const Sequence& sequence, int64_t t, int64_t n, int64_t place) const {
        return double(scores(t, n)[sequence.path[place]]) - double(sequence.sums[t].most) - sequence.sums[t].rest;
    }

    // Tells whether paths may go to a place from the one two before it, without the blank between them.
    bool skips(const Sequence& sequence, int64_t place) const {
        const int32_t* const path = sequence.path.data() + place;
        return place > 1 && path[0] != blank_ && path[0] != path[-2];
    }

    // Sets the path and the time of sequence n. Throws std::runtime_error for labels or lengths that cannot be.
    void read(int64_t n) {
        const auto count = int64_t(sequences_.size());
        const TensorPtr& blob = spec_.inputs.back();
        const int64_t given = spec_.inputs.size() == 4 ? length(input(2), n, most_labels_, "labels") : most_labels_;
        Sequence& sequence = sequences_[n];
        sequence.path.assign(1, blank_);
        int64_t repetitions = 0;
        for (int64_t i = 0; i < given; i++) {
            const float value = blob->data()[rows() ? n * most_labels_ + i : i * count + n];
            if (spec_.inputs.size() == 3 && value < 0) break;
            const float label = value + shift_;
            if (!(label >= 0 && label < float(classes_)))
                fail(n, "has label " + number_text(value) + ", but labels are in [0, " +
                            std::to_string(classes_ - whole(shift_)) + ")");
            const auto one = int32_t(whole(label));
            if (one == blank_) continue;
            if (sequence.path.size() > 1) repetitions += one == sequence.path.end()[-2];
            sequence.path.insert(sequence.path.end(), {one, blank_});
        }
        const auto labels = int64_t(sequence.path.size()) / 2;
        sequence.time = time(n);
        if (spec_.inputs.size() == 3 && labels == 0 && sequence.time == 1) sequence.time = 0;
        if (labels > sequence.time)
            fail(n,
                 "has " + std::to_string(labels) + " labels, but " + std::to_string(sequence.time) + " steps of time");
        if (labels + repetitions > sequence.time) sequence.time = 0;  // equal neighbours need a blank between them

        sequence.sums.resize(sequence.time);  // here, because no exception may leave a parallel loop
        sequence.from.resize(sequence.path.size());
    }

    int64_t time(int64_t n) const {
        if (rows()) return longest_;
        if (spec_.inputs.size() == 4) return length(input(1), n, steps_, "steps");
        int64_t t = 1;
        while (t < steps_ && whole(double(input(1)->data()[t * int64_t(sequences_.size()) + n]) + 0.5) != 0) t++;
        return t;
    }

    int64_t length(const TensorPtr& lengths, int64_t n, int64_t most, const std::string& what) const {
        const float value = lengths->data()[n];
        if (!(value >= 0 && value <= float(most)))
            fail(n, "is to have " + number_text(value) + " " + what + ", but its blob has " + std::to_string(most));
        return whole(value);
    }

    [[noreturn]] void fail(int64_t n, const std::string& what) const {
        throw std::runtime_error("layer '" + spec_.name + "': sequence " + std::to_string(n) + " " + what);
    }

    // Computes the paths() of sequence n and its probability.
    void follow(int64_t n) {
        Sequence& sequence = sequences_[n];
        if (sequence.time == 0) return;
        const auto places = int64_t(sequence.path.size());
        double* const to = paths(n);
        for (int64_t t = 0; t < sequence.time; t++) {
            sequence.sums[t] = log_sum(scores(t, n), classes_);
            double* const now = to + t * places;
            for (int64_t place = 0; place < places; place++) {
                double before = place < 2 ? 0 : impossible;  // paths begin with the blank or the first label
                if (t > 0) {
                    before = now[place - places];
                    if (place > 0) before = either(before, now[place - places - 1]);
                    if (skips(sequence, place)) before = either(before, now[place - places - 2]);
                }
                now[place] = before + emission(sequence, t, n, place);
            }
        }
        const double* const end = to + sequence.time * places;
        sequence.log_probability = end[-1];
        if (places > 1) sequence.log_probability = either(end[-1], end[-2]);
        if (sequence.log_probability == impossible) sequence.time = 0;  // a score of minus infinity
    }

    void differentiate(int64_t n, float scale) {
        Sequence& sequence = sequences_[n];
        const auto places = int64_t(sequence.path.size());
        const double* const to = paths(n);
        std::fill(sequence.from.begin(), sequence.from.end(), impossible);
        for (int64_t place = std::max<int64_t>(places - 2, 0); place < places; place++) sequence.from[place] = 0;
        for (int64_t t = steps_ - 1; t >= 0; t--) {
            float* const wanted = input(0)->diff->data() + (scores(t, n) - input(0)->data());
            if (t >= sequence.time) {
                std::fill_n(wanted, classes_, 0.f);
                continue;
            }
            if (t + 1 < sequence.time) step_back(sequence, t + 1, n);
            softmax(scores(t, n), sequence.sums[t], scale, classes_, wanted);
            for (int64_t place = 0; place < places; place++) {
                const double through = to[t * places + place] + sequence.from[place];
                wanted[sequence.path[place]] -= scale * float(std::exp(through - sequence.log_probability));
            }
        }
    }

    // Sets `from` to its values before step t, from those after it.
    void step_back(Sequence& sequence, int64_t t, int64_t n) const {
        const auto places = int64_t(sequence.path.size());
        double* const from = sequence.from.data();
        for (int64_t place = 0; place < places; place++) from[place] += emission(sequence, t, n, place);
        for (int64_t place = 0; place < places; place++) {
            if (place + 1 < places) from[place] = either(from[place], from[place + 1]);
            if (place + 2 < places && skips(sequence, place + 2)) from[place] = either(from[place], from[place + 2]);
        }
    }

    int32_t blank_;
    float shift_;
    int64_t longest_, steps_, classes_, most_labels_;
    TensorPtr paths_;
    std::vector<Sequence> sequences_;
};

static const RegisterOp<CTCLoss> registered("CTCLoss");

}  // namespace
}  // namespace engine
