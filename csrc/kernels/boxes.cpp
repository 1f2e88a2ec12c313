#include "kernels/boxes.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <stdexcept>

#include "kernels/whole.h"

namespace engine {

float overlap(const Box& a, const Box& b) {
    const Box common{std::max(a.x1, b.x1), std::max(a.y1, b.y1), std::min(a.x2, b.x2), std::min(a.y2, b.y2)};
    const float shared = common.area();
    return shared > 0 ? shared / (a.area() + b.area() - shared) : 0;
}

BoxCode::BoxCode(const std::string& code, bool variance_in_target)
    : centered_(code == "CENTER_SIZE"), sized_(code != "CORNER"), variance_in_target_(variance_in_target) {}

BoxCode::Numbers BoxCode::units(const Box& prior, const float* variances) const {
    Numbers units{1, 1, 1, 1};
    if (!variance_in_target_) std::copy_n(variances, 4, units.begin());
    if (!sized_) return units;
    const Numbers sizes{prior.width(), prior.height(), prior.width(), prior.height()};
    // In the code of center and size, the last two numbers are logarithms: they have no unit but the variance.
    for (size_t i = 0; i < (centered_ ? 2 : 4); i++) units[i] *= sizes[i];
    return units;
}

BoxCode::Numbers BoxCode::encode(const Box& prior, const float* variances, const Box& box) const {
    const Numbers unit = units(prior, variances);
    Numbers numbers{box.x1 - prior.x1, box.y1 - prior.y1, box.x2 - prior.x2, box.y2 - prior.y2};
    if (centered_)
        numbers = {(box.x1 + box.x2 - prior.x1 - prior.x2) / 2, (box.y1 + box.y2 - prior.y1 - prior.y2) / 2,
                   std::log(box.width() / prior.width()), std::log(box.height() / prior.height())};
    for (size_t i = 0; i < 4; i++) numbers[i] /= unit[i];
    return numbers;
}

Box BoxCode::decode(const Box& prior, const float* variances, const float* numbers) const {
    const Numbers unit = units(prior, variances);
    Numbers moved;
    for (size_t i = 0; i < 4; i++) moved[i] = numbers[i] * unit[i];
    if (!centered_) return {prior.x1 + moved[0], prior.y1 + moved[1], prior.x2 + moved[2], prior.y2 + moved[3]};
    const float x = (prior.x1 + prior.x2) / 2 + moved[0], y = (prior.y1 + prior.y2) / 2 + moved[1];
    const float width = std::exp(moved[2]) * prior.width() / 2, height = std::exp(moved[3]) * prior.height() / 2;
    return {x - width, y - height, x + width, y + height};
}

Truths read_truths(const std::string& layer, const float* values, int64_t rows, int64_t classes, int64_t background) {
    Truths truths;
    for (int64_t i = 0; i < rows; i++, values += truth_columns) {
        const int64_t image = whole(values[0]), label = whole(values[1]);
        if (image < 0) continue;
        if (label < 0 || label >= classes || label == background) {
            std::ostringstream message;
            message << "layer '" << layer << "': row " << i << " of the ground truth has label " << values[1]
                    << ", expected ";
            if (classes == any_class)
                message << "one of 0 or more";
            else
                message << "one of [0, " << classes << ")";
            message << " that is not the background, " << background;
            throw std::runtime_error(message.str());
        }
        truths[image].push_back({Box::at(values + 3), label, values[7] != 0});
    }
    return truths;
}

Truths read_centered_truths(const std::string& layer, const float* values, int64_t images, int64_t rows,
                            int64_t classes) {
    Truths truths;
    for (int64_t i = 0; i < images * rows; i++, values += 5) {
        const float x = values[1], y = values[2], width = values[3], height = values[4];
        if (!(width > 0 && height > 0)) continue;
        const int64_t label = whole(values[0]);
        if (label < 0 || label >= classes) {
            std::ostringstream message;
            message << "layer '" << layer << "': row " << i % rows << " of the ground truth of image " << i / rows
                    << " has label " << values[0] << ", expected one of [0, " << classes << ")";
            throw std::runtime_error(message.str());
        }
        const Box box{x - width / 2, y - height / 2, x + width / 2, y + height / 2};
        truths[i / rows].push_back({box, label + 1, false});
    }
    return truths;
}

std::vector<int64_t> suppress(const std::vector<Box>& boxes, const std::vector<float>& scores, float least,
                              int64_t top_k, float threshold, float eta, int64_t most) {
    std::vector<int64_t> order, kept;
    for (size_t i = 0; i < scores.size(); i++)
        if (scores[i] > least) order.push_back(int64_t(i));
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return scores[a] > scores[b]; });
    if (top_k >= 0 && top_k < int64_t(order.size())) order.resize(top_k);
    for (const int64_t i : order) {
        if (int64_t(kept.size()) == most) break;
        const auto covers = [&](int64_t other) { return overlap(boxes[i], boxes[other]) > threshold; };
        if (std::any_of(kept.begin(), kept.end(), covers)) continue;
        kept.push_back(i);
        if (eta < 1 && threshold > 0.5f) threshold *= eta;
    }
    return kept;
}

}  // namespace engine
