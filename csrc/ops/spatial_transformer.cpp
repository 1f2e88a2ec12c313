// Transforms planes by an affine map for each sample (Jaderberg et al. 2015, arXiv 1506.02025). A pixel of the top is
// read at (row, column) = theta (row, column, 1) of the bottom, interpolated bilinearly between its pixels and zeros
// around them. Rows and columns go from -1 to 1 over the height and the width.
// inputs: x (N, C, H, W), theta (N, ...): those of its six numbers that the attribute does not give, both float32,
// row-major; outputs: (N, C, h, w); attributes: theta (two rows of three; NaN: the input has the number).
#include <cmath>

#include "kernels/whole.h"
#include "ops/common/onednn_util.h"

namespace engine {
namespace {

class SpatialTransformer : public Op {
public:
    explicit SpatialTransformer(OpSpec spec) : Op(std::move(spec)), given_(spec_.attributes.reals("theta")) {
        const Dims &in = input(0)->shape, &out = spec_.output_shapes[0];
        samples_ = in[0];
        channels_ = in[1];
        height_ = in[2];
        width_ = in[3];
        top_height_ = out[2];
        top_width_ = out[3];
        for (const double value : given_) learned_ += std::isnan(value);
        output(0, plain_layout(out));
        touch(Pass::forward, {input(0), input(1), outputs_[0]});
        if (!needs_backward() || !output_gradient(0)) return;
        if (input_gradient(1)) sums_.resize(samples_ * top_height_ * numbers);
        touch(Pass::backward, {input(0), input(1), outputs_[0]->diff});
        for (const auto& each : spec_.inputs)
            if (each->diff) touch(Pass::backward, each->diff);
    }

    void forward(const dnnl::stream&) override {
        const int64_t plane = height_ * width_, top_plane = top_height_ * top_width_;
#pragma omp parallel for collapse(2) schedule(static)
        for (int64_t n = 0; n < samples_; n++)
            for (int64_t row = 0; row < top_height_; row++)
                for (int64_t column = 0; column < top_width_; column++) {
                    const Place p = place(n, row, column);
                    const float* const x = input(0)->data() + n * channels_ * plane;
                    float* const y = outputs_[0]->data() + n * channels_ * top_plane + row * top_width_ + column;
                    for (int64_t c = 0; c < channels_; c++) {
                        const Corners of = corners(x + c * plane, p);
                        y[c * top_plane] = mix(mix(of.top_left, of.top_right, p.across),
                                               mix(of.bottom_left, of.bottom_right, p.across), p.down);
                    }
                }
    }

    void backward(const dnnl::stream&) override {
        if (touched(Pass::backward).empty()) return;
        if (input_gradient(0)) differentiate_pixels();
        if (input_gradient(1)) differentiate_theta();
    }

private:
    static constexpr int64_t numbers = 6;

    struct Place {
        int64_t top, left;   // the pixel above and to the left, which may be one outside
        float down, across;  // the weights of the pixels below and to the right
        bool inside;         // whether any of the four is inside
    };
    struct Corners {
        float top_left, top_right, bottom_left, bottom_right;
    };

    // Returns the coordinate of a row or column: from -1 for the first to just below 1 for the last.
    static float coordinate(int64_t i, int64_t count) { return float(2 * double(i) / double(count) - 1); }

    Place place(int64_t n, int64_t row, int64_t column) const {
        const float* next = input(1)->data() + n * learned_;
        float theta[numbers];
        for (int64_t i = 0; i < numbers; i++) theta[i] = std::isnan(given_[i]) ? *next++ : float(given_[i]);
        const float down = coordinate(row, top_height_), across = coordinate(column, top_width_);
        const float y = (theta[0] * down + theta[1] * across + theta[2] + 1) / 2 * float(height_);
        const float x = (theta[3] * down + theta[4] * across + theta[5] + 1) / 2 * float(width_);
        if (!(y > -1 && y < float(height_) && x > -1 && x < float(width_))) return {};
        const float above = std::floor(y), left = std::floor(x);
        return {whole(above), whole(left), y - above, x - left, true};
    }

    Corners corners(const float* plane, const Place& p) const {
        if (!p.inside) return {};
        const bool above = p.top >= 0, below = p.top + 1 < height_, left = p.left >= 0, right = p.left + 1 < width_;
        const int64_t at = p.top * width_ + p.left;
        return {above && left ? plane[at] : 0, above && right ? plane[at + 1] : 0,
                below && left ? plane[at + width_] : 0, below && right ? plane[at + width_ + 1] : 0};
    }

    static float mix(float a, float b, float share) { return (1 - share) * a + share * b; }

    void differentiate_pixels() const {
        const int64_t plane = height_ * width_, top_plane = top_height_ * top_width_;
#pragma omp parallel for collapse(2) schedule(static)
        for (int64_t n = 0; n < samples_; n++)
            for (int64_t c = 0; c < channels_; c++) {
                const float* const given = outputs_[0]->diff->data() + (n * channels_ + c) * top_plane;
                float* const wanted = input(0)->diff->data() + (n * channels_ + c) * plane;
                std::fill_n(wanted, plane, 0.f);
                for (int64_t row = 0; row < top_height_; row++)
                    for (int64_t column = 0; column < top_width_; column++) {
                        const Place p = place(n, row, column);
                        if (p.inside) spread(given[row * top_width_ + column], p, wanted);
                    }
            }
    }

    void spread(float given, const Place& p, float* wanted) const {
        const bool above = p.top >= 0, below = p.top + 1 < height_, left = p.left >= 0, right = p.left + 1 < width_;
        const int64_t at = p.top * width_ + p.left;
        if (above && left) wanted[at] += (1 - p.down) * (1 - p.across) * given;
        if (above && right) wanted[at + 1] += (1 - p.down) * p.across * given;
        if (below && left) wanted[at + width_] += p.down * (1 - p.across) * given;
        if (below && right) wanted[at + width_ + 1] += p.down * p.across * given;
    }

    // Computes the gradient of theta. Each row of the top is summed first, so that the order of sums does not depend on
    // the number of threads.
    void differentiate_theta() {
#pragma omp parallel for collapse(2) schedule(static)
        for (int64_t n = 0; n < samples_; n++)
            for (int64_t row = 0; row < top_height_; row++) add_row(n, row, &sums_[(n * top_height_ + row) * numbers]);
        for (int64_t n = 0; n < samples_; n++) {
            float* wanted = input(1)->diff->data() + n * learned_;
            for (int64_t i = 0; i < numbers; i++) {
                if (!std::isnan(given_[i])) continue;
                double sum = 0;
                for (int64_t row = 0; row < top_height_; row++) sum += sums_[(n * top_height_ + row) * numbers + i];
                *wanted++ = float(sum);
            }
        }
    }

    void add_row(int64_t n, int64_t row, double* sums) const {
        const int64_t plane = height_ * width_, top_plane = top_height_ * top_width_;
        std::fill_n(sums, numbers, 0.);
        const double down = coordinate(row, top_height_);
        for (int64_t column = 0; column < top_width_; column++) {
            const Place p = place(n, row, column);
            if (!p.inside) continue;
            double of_row = 0, of_column = 0;
            for (int64_t c = 0; c < channels_; c++) {
                const Corners of = corners(input(0)->data() + (n * channels_ + c) * plane, p);
                const float given =
                    outputs_[0]->diff->data()[(n * channels_ + c) * top_plane + row * top_width_ + column];
                of_row += given * mix(of.bottom_left - of.top_left, of.bottom_right - of.top_right, p.across);
                of_column += given * mix(of.top_right - of.top_left, of.bottom_right - of.bottom_left, p.down);
            }
            of_row *= double(height_) / 2;
            of_column *= double(width_) / 2;
            const double across = coordinate(column, top_width_);
            const double terms[numbers] = {of_row * down,    of_row * across,    of_row,
                                           of_column * down, of_column * across, of_column};
            for (int64_t i = 0; i < numbers; i++) sums[i] += terms[i];
        }
    }

    std::vector<double> given_, sums_;  // given_: theta, or NaN; sums_: (N, h, 6), its gradient by rows of the top
    int64_t samples_, channels_, height_, width_, top_height_, top_width_, learned_ = 0;
};

static const RegisterOp<SpatialTransformer> registered("SpatialTransformer");

}  // namespace
}  // namespace engine
