// Computes the loss of a detector with prior boxes (Liu et al. 2016, arXiv 1512.02325): of the offsets that priors
// matched to a true box predict, and of the classes that these and the hardest of the other priors predict.
// inputs: locations (N, P * 4, or P * classes * 4), confidences (N, P * classes), priors (1, 2, P * 4), ground truth
// (1, 1, M, 8), all float32, row-major; outputs: loss (); attributes: per_prediction (else bipartite only),
// overlap_threshold, ignore_cross_boundary; code (CORNER, CENTER_SIZE, CORNER_SIZE), variance_in_target; classes,
// background, share_location, use_difficult, agnostic (all boxes but the background's are of the class after the
// background), mining, neg_pos_ratio, neg_overlap, inside_only (offsets of priors' corners outside the image do not
// count), with_locations, with_classes (whether each has a term in the loss), loc_weight, l2, logistic, loss_weight,
// normalizer (0: the number of matches).
#include <algorithm>
#include <cmath>

#include "kernels/box_matcher.h"
#include "kernels/chunks.h"
#include "kernels/whole.h"
#include "ops/common/onednn_util.h"

namespace engine {
namespace {

class MultiBoxLoss : public Op {
public:
    explicit MultiBoxLoss(OpSpec spec)
        : Op(std::move(spec)),
          matcher_(spec_.attributes.flag("per_prediction"), spec_.attributes.flag("ignore_cross_boundary"),
                   float(spec_.attributes.real("overlap_threshold"))),
          code_(spec_.attributes.text("code"), spec_.attributes.flag("variance_in_target")) {
        const auto& attributes = spec_.attributes;
        classes_ = attributes.integer("classes");
        background_ = attributes.integer("background");
        location_classes_ = attributes.flag("share_location") ? 1 : classes_;
        use_difficult_ = attributes.flag("use_difficult");
        agnostic_ = attributes.flag("agnostic");
        mining_ = attributes.flag("mining");
        inside_only_ = attributes.flag("inside_only");
        with_locations_ = attributes.flag("with_locations");
        with_classes_ = attributes.flag("with_classes");
        divide_ = attributes.flag("variance_in_target");
        l2_ = attributes.flag("l2");
        logistic_ = attributes.flag("logistic");
        ratio_ = attributes.real("neg_pos_ratio");
        neg_overlap_ = float(attributes.real("neg_overlap"));
        loc_weight_ = attributes.real("loc_weight");
        fixed_normalizer_ = attributes.real("normalizer");
        images_ = input(0)->shape[0];
        priors_ = input(2)->count() / 8;
        matches_.resize(images_ * priors_);
        counts_.resize(images_ * priors_);
        others_.resize(images_);
        for (auto* sums : {&matched_, &location_sums_, &class_sums_}) sums->resize(images_);
        make_loss();
        touch(Pass::forward, {input(0), input(1), input(2), input(3)});
        for (size_t i = 0; i < 2; i++)
            if (input_gradient(i)) touch(Pass::backward, {input(i), input(2), input(i)->diff});
    }

    void forward(const dnnl::stream&) override {
        const int64_t labels = agnostic_ ? any_class : classes_;
        truths_ = read_truths(spec_.name, input(3)->data(), input(3)->shape[2], labels, background_);
        if (!use_difficult_)
            for (auto& image : truths_) {
                auto& boxes = image.second;
                const auto difficult = [](const Truth& truth) { return truth.difficult; };
                boxes.erase(std::remove_if(boxes.begin(), boxes.end(), difficult), boxes.end());
            }
#pragma omp parallel for schedule(dynamic)
        for (int64_t n = 0; n < images_; n++) {
            choose(n);
            add_up(n);
        }
        double matched = 0, location = 0, classes = 0;  // in the order of images, whatever the number of threads
        for (int64_t n = 0; n < images_; n++) {
            matched += matched_[n];
            if (with_locations_) location += location_sums_[n];
            if (with_classes_) classes += class_sums_[n];
        }
        normalizer_ = std::max(1., fixed_normalizer_ > 0 ? fixed_normalizer_ : matched);
        outputs_[0]->data()[0] = float((loc_weight_ * location + classes) / normalizer_);
    }

    void backward(const dnnl::stream&) override {
        in_chunks(images_ * priors_, [this](int64_t begin, int64_t length) {
            const int64_t numbers[] = {location_classes_ * 4, classes_};  // of each prior
            for (size_t i = 0; i < 2; i++)
                if (input_gradient(i))
                    std::fill_n(input(i)->diff->data() + begin * numbers[i], length * numbers[i], 0.f);
            for (int64_t i = begin; i < begin + length; i++) {
                if (input_gradient(0) && matches_[i].truth >= 0) differentiate_location(i);
                if (input_gradient(1) && counts_[i]) differentiate_class(i);
            }
        });
    }

private:
    const std::vector<Truth>& truths_of(int64_t n) const {
        static const std::vector<Truth> nothing;
        const auto found = truths_.find(n);
        return found == truths_.end() ? nothing : found->second;
    }

    // Sets the matches of image n, and which priors' classes count: all, or with mining the matched ones and the
    // hardest of the others.
    void choose(int64_t n) {
        const int64_t first = n * priors_;
        matcher_.match(truths_of(n), input(2)->data(), priors_, &matches_[first]);
        matched_[n] = 0;
        for (int64_t i = first; i < first + priors_; i++) {
            counts_[i] = !mining_ || matches_[i].truth >= 0;
            matched_[n] += matches_[i].truth >= 0;
        }
        if (!mining_ || matched_[n] == 0) return;
        auto& others = others_[n];
        others.clear();
        for (int64_t i = first; i < first + priors_; i++)
            if (matches_[i].truth == BoxMatcher::none && matches_[i].overlap < neg_overlap_)
                others.emplace_back(class_loss(i), i);
        const size_t wanted = std::min(others.size(), size_t(std::max<int64_t>(whole(matched_[n] * ratio_), 0)));
        const auto harder = [](const auto& a, const auto& b) { return a.first > b.first; };
        std::stable_sort(others.begin(), others.end(), harder);
        for (size_t k = 0; k < wanted; k++) counts_[others[k].second] = true;
    }

    void add_up(int64_t n) {
        location_sums_[n] = class_sums_[n] = 0;
        for (int64_t i = n * priors_; i < (n + 1) * priors_; i++) {
            if (counts_[i]) class_sums_[n] += class_loss(i);
            if (matches_[i].truth < 0) continue;
            for (const float d : distance(i)) {
                const double size = std::abs(d);
                location_sums_[n] += l2_ || size < 1 ? size * size / 2 : size - 0.5;
            }
        }
    }

    const Truth& truth_of(int64_t i) const { return truths_of(i / priors_)[matches_[i].truth]; }

    int64_t label_of(int64_t i) const {
        if (matches_[i].truth < 0) return background_;
        return agnostic_ ? background_ + 1 : truth_of(i).label;
    }

    int64_t location_at(int64_t i) const {
        return (i * location_classes_ + (location_classes_ > 1 ? label_of(i) : 0)) * 4;
    }

    // Returns the offsets that matched prior i predicts minus those that it should predict.
    BoxCode::Numbers distance(int64_t i) const {
        const float* const prior = input(2)->data() + i % priors_ * 4;
        const float* const variances = prior + priors_ * 4;
        const float* const predicted = input(0)->data() + location_at(i);
        BoxCode::Numbers numbers = code_.encode(Box::at(prior), variances, truth_of(i).box);
        for (size_t k = 0; k < 4; k++) {
            numbers[k] = (predicted[k] - numbers[k]) / (divide_ ? variances[k] : 1);
            if (inside_only_ && (prior[k] < 0 || prior[k] > 1)) numbers[k] = 0;
        }
        return numbers;
    }

    // Tells whether class c is the one to predict. With logistic, the background is a class like others if priors are
    // mined; else a prior without a match has no class.
    bool is_target(int64_t i, int64_t c) const {
        return c == label_of(i) && (!logistic_ || mining_ || matches_[i].truth >= 0);
    }

    double class_loss(int64_t i) const {
        const float* const scores = input(1)->data() + i * classes_;
        double loss = 0;
        if (logistic_) {
            for (int64_t c = 0; c < classes_; c++)
                loss +=
                    std::max(scores[c], 0.f) - scores[c] * is_target(i, c) + std::log1p(std::exp(-std::abs(scores[c])));
            return loss;
        }
        const double largest = *std::max_element(scores, scores + classes_);
        for (int64_t c = 0; c < classes_; c++) loss += std::exp(scores[c] - largest);
        return std::log(loss) + largest - scores[label_of(i)];
    }

    void differentiate_location(int64_t i) const {
        const float* const variances = input(2)->data() + (priors_ + i % priors_) * 4;
        const BoxCode::Numbers numbers = distance(i);
        const double scale = loss_gradient() * loc_weight_ / normalizer_;
        for (size_t k = 0; k < 4; k++) {
            const float slope = l2_ ? numbers[k] : std::clamp(numbers[k], -1.f, 1.f);
            input(0)->diff->data()[location_at(i) + int64_t(k)] = float(scale * slope / (divide_ ? variances[k] : 1));
        }
    }

    void differentiate_class(int64_t i) const {
        const float* const scores = input(1)->data() + i * classes_;
        float* const diff = input(1)->diff->data() + i * classes_;
        const double scale = loss_gradient() / normalizer_;
        double largest = *std::max_element(scores, scores + classes_), sum = 0;
        for (int64_t c = 0; c < classes_; c++) sum += std::exp(scores[c] - largest);
        for (int64_t c = 0; c < classes_; c++) {
            const double p = logistic_ ? 1 / (1 + std::exp(-double(scores[c]))) : std::exp(scores[c] - largest) / sum;
            diff[c] = float(scale * (p - is_target(i, c)));
        }
    }

    BoxMatcher matcher_;
    BoxCode code_;
    int64_t classes_, background_, location_classes_, images_, priors_;
    bool use_difficult_, agnostic_, mining_, inside_only_, with_locations_, with_classes_, divide_, l2_, logistic_;
    double ratio_, loc_weight_, fixed_normalizer_, normalizer_ = 1;
    float neg_overlap_;
    Truths truths_;
    std::vector<BoxMatcher::Match> matches_;                       // (N, P)
    std::vector<uint8_t> counts_;                                  // (N, P): whether the class counts
    std::vector<std::vector<std::pair<double, int64_t>>> others_;  // of each image: (loss, prior) that may be mined
    std::vector<double> matched_, location_sums_, class_sums_;     // of each image
};

static const RegisterOp<MultiBoxLoss> registered("MultiBoxLoss");

}  // namespace
}  // namespace engine
