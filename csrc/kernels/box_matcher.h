// Matches prior boxes with boxes of the ground truth.
#pragma once

#include "kernels/boxes.h"

namespace engine {

class BoxMatcher {
public:
    static constexpr int32_t none = -1;     // the prior has no box: it is background
    static constexpr int32_t ignored = -2;  // the prior reaches out of the image

    // per_prediction: whether a box may have several priors, which overlap it by `threshold` or more; else it has one.
    BoxMatcher(bool per_prediction, bool ignore_cross_boundary, float threshold)
        : per_prediction_(per_prediction), ignore_cross_boundary_(ignore_cross_boundary), threshold_(threshold) {}

    struct Match {
        int32_t truth;  // an index, or none, or ignored
        float overlap;  // with that box; without one, the largest with any
    };

    // Sets `count` matches. priors: (count, 4). Every true box first gets the prior that it overlaps most, in order of
    // the overlaps, the largest first. Then, with per_prediction, every other prior gets the box that it overlaps most,
    // if by the threshold.
    void match(const std::vector<Truth>& truths, const float* priors, int64_t count, Match* matches) const;

private:
    bool per_prediction_, ignore_cross_boundary_;
    float threshold_;
};

}  // namespace engine
