// Averages samples of each cell of a grid over regions of interest, every cell in a channel of its own. Offsets move
// the cells (Dai et al. 2017, arXiv 1703.06211). Samples begin where their cell begins, and are interpolated bilinearly
// between pixels; those more than half a pixel outside of the features do not count.
// inputs: see score_maps.h, optionally offsets (R, classes * 2, part, part), float32, row-major, for each class of
// outputs and each piece of a region: of columns, then of rows, in sizes of the region; outputs, further attributes:
// see score_maps.h; attributes: samples (of a cell along each axis), offset_scale (Caffe's trans_std).
#include <algorithm>
#include <cmath>

#include "kernels/whole.h"
#include "ops/common/score_maps.h"

namespace engine {
namespace {

// A sample along one axis: the two pixels around it, and the weight of the second.
struct Sample {
    int64_t low, high;
    float share;
    bool inside;
};

// The samples along one axis of a cell, and the size of its region, in pixels.
struct Line {
    float begin, step, size;
    int64_t pixels;

    Sample operator[](int64_t i) const {
        float at = begin + float(i) * step;
        if (!(at >= -0.5f && at <= float(pixels) - 0.5f)) return {};
        at = std::clamp(at, 0.f, float(pixels - 1));
        const int64_t low = whole(at);
        // A sample on a pixel has no second one: its offset has gradient 0, as it has beyond the border.
        return {low, low + (at > float(low)), at - float(low), true};
    }
};

class DeformablePSROIPooling : public ScoreMaps {
public:
    explicit DeformablePSROIPooling(OpSpec spec)
        : ScoreMaps(std::move(spec)),
          samples_(spec_.attributes.integer("samples")),
          offset_scale_(float(spec_.attributes.real("offset_scale"))) {
        if (!moves()) return;
        classes_ = input(2)->shape[1] / 2;
        part_ = input(2)->shape[2];
        touch(Pass::forward, input(2));
        if (!output_gradient(0)) return;
        if (input_gradient(0)) touch(Pass::backward, input(2));
        if (input_gradient(2)) touch(Pass::backward, {input(0), input(1), input(2), outputs_[0]->diff, input(2)->diff});
    }

    void forward(const dnnl::stream&) override {
        find_images();
        for_cells([&](int64_t r, int64_t c) {
            const float* const x = plane(r, c);
            float sum = 0;
            const int64_t count = each_sample(r, c, [&](const Sample& row, const Sample& column) {
                const float *const top = x + row.low * width_, *const bottom = x + row.high * width_;
                sum += mix(mix(top[column.low], top[column.high], column.share),
                           mix(bottom[column.low], bottom[column.high], column.share), row.share);
            });
            return count > 0 ? sum / float(count) : 0.f;
        });
    }

    void backward(const dnnl::stream&) override {
        if (!output_gradient(0)) return;
        if (input_gradient(0)) differentiate_features();
        if (moves() && input_gradient(2)) differentiate_offsets();
    }

private:
    bool moves() const { return spec_.inputs.size() > 2; }

    static float mix(float a, float b, float share) { return a + share * (b - a); }

    // Calls visit(row, column) for all samples of a cell that count. Returns how many there are.
    template <typename Visit>
    int64_t each_sample(int64_t r, int64_t c, const Visit& visit) const {
        const Line rows = line(r, c, 1), columns = line(r, c, 0);
        int64_t count = 0;
        for (int64_t i = 0; i < samples_; i++) {
            const Sample row = rows[i];
            for (int64_t j = 0; row.inside && j < samples_; j++) {
                const Sample column = columns[j];
                if (!column.inside) continue;
                visit(row, column);
                count++;
            }
        }
        return count;
    }

    // Returns the samples of region r's cell in channel c. axis: 0 for columns, 1 for rows.
    Line line(int64_t r, int64_t c, int64_t axis) const {
        const float* const of = roi(r) + 1 + axis;
        const float begin = std::round(of[0]) * scale_ - 0.5f;
        // Regions include the pixels at both ends, and are never smaller than 0.1.
        const float size = std::max((std::round(of[2]) + 1) * scale_ - 0.5f - begin, 0.1f), cell = size / float(group_);
        const float at = begin + float(axis == 0 ? column_of(c) : row_of(c)) * cell;
        const float moved = moves() ? at + input(2)->data()[offset(r, c, axis)] * offset_scale_ * size : at;
        return {moved, cell / float(samples_), size, axis == 0 ? width_ : height_};
    }

    // Returns the index of the offset of a cell: that of its piece of the region and its class.
    int64_t offset(int64_t r, int64_t c, int64_t axis) const {
        const int64_t each = channels_ / classes_, row = row_of(c) * part_ / group_;
        return (((r * classes_ + c / each) * 2 + axis) * part_ + row) * part_ + column_of(c) * part_ / group_;
    }

    void differentiate_features() const {
        add_cells([&](int64_t r, int64_t c, float given, float* wanted) {
            const auto none = [](const Sample&, const Sample&) {};
            const float each = given / float(std::max<int64_t>(each_sample(r, c, none), 1));
            each_sample(r, c, [&](const Sample& row, const Sample& column) {
                const auto add = [&](int64_t h, float share) {
                    wanted[h * width_ + column.low] += each * share * (1 - column.share);
                    wanted[h * width_ + column.high] += each * share * column.share;
                };
                add(row.low, 1 - row.share);
                add(row.high, row.share);
            });
        });
    }

    // Computes the gradient of the offsets. Those of a region belong to one thread, because cells share them and their
    // gradients are summed.
    void differentiate_offsets() const {
        const int64_t count = classes_ * 2 * part_ * part_;
        float* const wanted = input(2)->diff->data();
#pragma omp parallel for
        for (int64_t r = 0; r < rois_; r++) {
            std::fill_n(wanted + r * count, count, 0.f);
            for (int64_t c = 0; c < channels_ && image_of_[r] >= 0; c++) {
                const float* const x = plane(r, c);
                float down = 0, across = 0;
                const int64_t samples = each_sample(r, c, [&](const Sample& row, const Sample& column) {
                    const float *const top = x + row.low * width_, *const bottom = x + row.high * width_;
                    down +=
                        mix(bottom[column.low] - top[column.low], bottom[column.high] - top[column.high], column.share);
                    across +=
                        mix(top[column.high] - top[column.low], bottom[column.high] - bottom[column.low], row.share);
                });
                if (samples == 0) continue;
                const float each = outputs_[0]->diff->data()[r * channels_ + c] / float(samples) * offset_scale_;
                wanted[offset(r, c, 0)] += each * across * line(r, c, 0).size;
                wanted[offset(r, c, 1)] += each * down * line(r, c, 1).size;
            }
        }
    }

    int64_t samples_, classes_ = 0, part_ = 0;
    float offset_scale_;
};

static const RegisterOp<DeformablePSROIPooling> registered("DeformablePSROIPooling");

}  // namespace
}  // namespace engine
