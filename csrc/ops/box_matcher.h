// Which prior boxes stand for which box of the ground truth.
// attributes: per_prediction (else bipartite only), overlap_threshold, ignore_cross_boundary.
#pragma once

#include "boxes.h"

namespace engine {

class BoxMatcher {
public:
    static constexpr int32_t none = -1;     // no box: background
    static constexpr int32_t ignored = -2;  // reaches out of the image

    explicit BoxMatcher(const Attributes& attributes)
        : per_prediction_(attributes.flag("per_prediction")),
          ignore_cross_boundary_(attributes.flag("ignore_cross_boundary")),
          threshold_(float(attributes.real("overlap_threshold"))) {}

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
