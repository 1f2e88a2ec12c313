// Which prior boxes stand for which box of the ground truth.
#pragma once

#include "kernels/boxes.h"

namespace engine {

class BoxMatcher {
public:
    static constexpr int32_t none = -1;     // no box: background
    static constexpr int32_t ignored = -2;  // reaches out of the image

    // per_prediction: else bipartite only. threshold: the overlap from which a prior counts, per prediction.
    BoxMatcher(bool per_prediction, bool ignore_cross_boundary, float threshold)
        : per_prediction_(per_prediction), ignore_cross_boundary_(ignore_cross_boundary), threshold_(threshold) {}

    struct Match {
        int32_t truth;  // an index, or none, or ignored
        float overlap;  // with that box, or the largest with any
    };

    // Every box of `truths` first gets the prior that it overlaps most, the largest overlap first; then, per
    // prediction, every other prior goes to the box that it overlaps most, if by the threshold.
    void match(const std::vector<Truth>& truths, const float* priors, int64_t count, Match* matches) const;

private:
    bool per_prediction_, ignore_cross_boundary_;
    float threshold_;
};

}  // namespace engine
