#include "kernels/box_matcher.h"

namespace engine {

constexpr float least_overlap = 1e-6f;  // a smaller overlap, or this one, counts as none

void BoxMatcher::match(const std::vector<Truth>& truths, const float* priors, int64_t count, Match* matches) const {
    const int64_t boxes = int64_t(truths.size());
    std::vector<float> overlaps(count * boxes);  // (priors, truths)
    std::vector<int32_t> best(count);            // the truth that each prior overlaps most
    for (int64_t p = 0; p < count; p++) {
        const Box prior = Box::at(priors + p * 4);
        matches[p] = {none, 0};
        if (boxes && ignore_cross_boundary_ && !prior.within_image()) {
            matches[p].truth = ignored;
            continue;
        }
        for (int64_t t = 0; t < boxes; t++) {
            const float shared = overlap(prior, truths[t].box);
            if (shared <= least_overlap) continue;
            overlaps[p * boxes + t] = shared;
            if (shared > matches[p].overlap) {
                matches[p].overlap = shared;
                best[p] = int32_t(t);
            }
        }
    }
    std::vector<bool> taken(boxes);
    for (int64_t round = 0; round < boxes; round++) {
        int64_t prior = -1, truth = -1;
        float most = 0;
        for (int64_t p = 0; p < count; p++) {
            if (matches[p].truth != none || matches[p].overlap <= most) continue;
            for (int64_t t = 0; t < boxes; t++) {
                if (taken[t] || overlaps[p * boxes + t] <= most) continue;
                most = overlaps[p * boxes + t];
                prior = p;
                truth = t;
            }
        }
        if (prior < 0) break;
        taken[truth] = true;
        matches[prior] = {int32_t(truth), most};
    }
    if (!per_prediction_) return;
    for (int64_t p = 0; p < count; p++)
        if (matches[p].truth == none && matches[p].overlap > 0 && matches[p].overlap >= threshold_)
            matches[p].truth = best[p];
}

}  // namespace engine
