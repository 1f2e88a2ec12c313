// Converts class labels, which arrive as float32, to integers, with errors that say which one is wrong.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/chunks.h"
#include "kernels/whole.h"
#include "op.h"

namespace engine {

class Labels {
public:
    static constexpr int32_t ignored = -1;

    // For `count` labels. The attribute ignore_label, or ignore_labels for several, gives the values that do not count.
    Labels(const OpSpec& spec, int64_t count, int64_t classes) : layer_(spec.name), classes_(classes), values_(count) {
        const Attributes& attributes = spec.attributes;
        if (attributes.has("ignore_label")) ignore_.push_back(float(attributes.integer("ignore_label")));
        if (attributes.has("ignore_labels"))
            for (int64_t label : attributes.integers("ignore_labels")) ignore_.push_back(float(label));
    }

    // Converts the labels and returns how many are not ignored. Throws std::runtime_error, which names layer and
    // position, for a label that is neither ignored nor in [0, classes).
    int64_t read(const float* labels) {
        const auto count = int64_t(values_.size());
        int64_t valid = 0, wrong = count;  // wrong: the position of the first label that is outside
#pragma omp parallel for schedule(static) reduction(+ : valid) reduction(min : wrong) if (count > chunk_size)
        for (int64_t i = 0; i < count; i++) {
            const float label = labels[i];
            const bool counts = std::find(ignore_.begin(), ignore_.end(), label) == ignore_.end();
            const bool inside = label >= 0 && label < float(classes_);  // not NaN
            if (counts && !inside) wrong = std::min(wrong, i);
            values_[i] = counts && inside ? int32_t(whole(label)) : ignored;
            valid += counts;
        }
        if (wrong < count) fail(labels[wrong], wrong);
        return valid;
    }

    // Returns the class, or Labels::ignored.
    int32_t operator[](size_t i) const { return values_[i]; }

private:
    [[noreturn]] void fail(float label, int64_t position) const {
        throw std::runtime_error("layer '" + layer_ + "': label " + number_text(label) + " at position " +
                                 std::to_string(position) + " is outside [0, " + std::to_string(classes_) + ")");
    }

    std::string layer_;
    int64_t classes_;
    std::vector<float> ignore_;
    std::vector<int32_t> values_;
};

}  // namespace engine
