// Computes mean field inference in a conditional random field with Gaussian potentials (Zheng et al. 2015, arXiv
// 1502.03240). In each iteration, with the softmax p of the scores, they become unary - compatibilities (spatial
// weights S(p) + bilateral weights B(p)), where the filters S and B are weighted means. Pictures have no gradient.
// inputs: unary scores, first scores (both (N, C, H, W)), pictures (N, 3, H, W), all float32, row-major; outputs:
// scores, as unary; attributes: iterations, theta_gamma (the spatial filter's deviation, in pixels), theta_alpha and
// theta_beta (the bilateral filter's, in pixels and in values of the picture).
// params: weights of the spatial filter, of the bilateral filter, compatibilities, (1, 1, C, C) each.
//
// Inside, the classes of a pixel lie side by side in blocks of a vector's length: (blocks, points, lanes), called rows.
// A filter does one block at a time. The product of a gradient g with S(p) is that of S'(g) with p, where S' is the
// transposed filter: so backward filters g once by each, and that gives the gradients of scores and all parameters.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <memory>

#include "kernels/chunks.h"
#include "kernels/eight.h"
#include "kernels/lattice.h"
#include "kernels/vectorised.h"
#include "ops/common/onednn_util.h"

namespace engine {
namespace {

using Bilateral = Lattice<5>;
using Spatial = Lattice<2>;
constexpr int64_t lanes = Bilateral::lanes;
constexpr int64_t group = 4;  // rows, or lanes, that are multiplied together

// A strip of neighbouring points, with all classes.
struct Strip {
    int64_t classes, points;  // of the sample
    int64_t begin, length;

    int64_t blocks() const { return (classes + lanes - 1) / lanes; }
    int64_t padded() const { return blocks() * lanes; }
    int64_t row(int64_t block, int64_t i) const { return (block * points + begin + i) * lanes; }
};

// Sets rows to planes (classes, points), and their lanes behind the last class to `rest`.
ENGINE_VECTORISED void to_rows(const Strip& strip, const float* planes, float rest, float* rows) {
    for (int64_t c = 0; c < strip.padded(); c++) {
        const float* const plane = planes + c * strip.points + strip.begin;
        float* const to = rows + strip.row(c / lanes, 0) + c % lanes;
        for (int64_t i = 0; i < strip.length; i++) to[i * lanes] = c < strip.classes ? plane[i] : rest;
    }
}

// Sets planes to rows, or with `add` adds rows to them.
ENGINE_VECTORISED void to_planes(const Strip& strip, const float* rows, bool add, float* planes) {
    for (int64_t c = 0; c < strip.classes; c++) {
        const float* const from = rows + strip.row(c / lanes, 0) + c % lanes;
        float* const plane = planes + c * strip.points + strip.begin;
        for (int64_t i = 0; i < strip.length; i++) plane[i] = (add ? plane[i] : 0) + from[i * lanes];
    }
}

void clear(const Strip& strip, float* rows) {
    for (int64_t block = 0; block < strip.blocks(); block++)
        std::fill_n(rows + strip.row(block, 0), strip.length * lanes, 0.f);
}

template <int64_t count>
ENGINE_INLINE void add_products_of(const Strip& strip, const float* matrix, const float* x, int64_t block, int64_t i,
                                   float* y) {
    Eight sums[count];
    for (int64_t j = 0; j < count; j++) sums[j] = eight(y + strip.row(block, i + j));
    for (int64_t k = 0; k < strip.classes; k++) {
        const Eight weights = eight(matrix + k * strip.padded() + block * lanes);
        const float* const from = x + strip.row(k / lanes, i) + k % lanes;
        for (int64_t j = 0; j < count; j++) sums[j] += from[j * lanes] * weights;
    }
    for (int64_t j = 0; j < count; j++) eight(y + strip.row(block, i + j)) = sums[j];
}

// Adds x matrix to y; both are rows. matrix: (classes, padded classes)
ENGINE_VECTORISED void add_product(const Strip& strip, const float* matrix, const float* x, float* y) {
    for (int64_t block = 0; block < strip.blocks(); block++) {
        int64_t i = 0;
        for (; i + group <= strip.length; i += group) add_products_of<group>(strip, matrix, x, block, i, y);
        for (; i < strip.length; i++) add_products_of<1>(strip, matrix, x, block, i, y);
    }
}

// Adds x' y, of rows, to sums (padded classes, padded classes); those of no class have no meaning.
ENGINE_VECTORISED void add_moments(const Strip& strip, const float* x, const float* y, double* sums) {
    for (int64_t c = 0; c < strip.padded(); c += group)
        for (int64_t block = 0; block < strip.blocks(); block++) {
            Eight found[group] = {};
            for (int64_t i = 0; i < strip.length; i++) {
                const Eight values = eight(y + strip.row(block, i));
                const float* const from = x + strip.row(c / lanes, i) + c % lanes;
                for (int64_t j = 0; j < group; j++) found[j] += from[j] * values;
            }
            for (int64_t j = 0; j < group; j++)
                for (int64_t lane = 0; lane < lanes; lane++)
                    sums[(c + j) * strip.padded() + block * lanes + lane] += double(found[j][lane]);
        }
}

ENGINE_INLINE float sum_of(const Eight& v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }

// Turns scores into probabilities. Those behind the last class must be far below all others.
ENGINE_VECTORISED void softmax(const Strip& strip, float* rows) {
    const int64_t last = strip.blocks() - 1;
    for (int64_t i = 0; i < strip.length; i++) {
        Eight most = eight(rows + strip.row(0, i));
        for (int64_t block = 1; block <= last; block++) {
            const Eight scores = eight(rows + strip.row(block, i));
            most = scores > most ? scores : most;
        }
        float greatest = most[0];
        for (int64_t lane = 1; lane < lanes; lane++) greatest = std::max(greatest, most[lane]);
        for (int64_t block = 0; block <= last; block++) {
            float* const row = rows + strip.row(block, i);
            eight(row) = eight(row) - greatest;
        }
    }
    for (int64_t block = 0; block <= last; block++) {
        float* const row = rows + strip.row(block, 0);
#pragma omp simd
        for (int64_t i = 0; i < strip.length * lanes; i++)  // below -87 expf() is slow
            row[i] = expf(row[i] < -87 ? -87 : row[i]);
    }
    Eight kept{};  // lanes of the last block that are of a class
    for (int64_t lane = 0; lane < strip.classes - last * lanes; lane++) kept[lane] = 1;
    for (int64_t i = 0; i < strip.length; i++) {
        Eight sum = eight(rows + strip.row(last, i)) * kept;
        eight(rows + strip.row(last, i)) = sum;
        for (int64_t block = 0; block < last; block++) sum += eight(rows + strip.row(block, i));
        const float scale = 1 / sum_of(sum);
        for (int64_t block = 0; block <= last; block++) {
            float* const row = rows + strip.row(block, i);
            eight(row) = scale * eight(row);
        }
    }
}

// Turns `given`, the gradient of the probabilities p, into that of the scores.
ENGINE_VECTORISED void softmax_gradient(const Strip& strip, const float* p, float* given) {
    for (int64_t i = 0; i < strip.length; i++) {
        Eight along{};
        for (int64_t block = 0; block < strip.blocks(); block++)
            along += eight(p + strip.row(block, i)) * eight(given + strip.row(block, i));
        const float sum = sum_of(along);
        for (int64_t block = 0; block < strip.blocks(); block++) {
            float* const row = given + strip.row(block, i);
            eight(row) = eight(p + strip.row(block, i)) * (eight(row) - sum);
        }
    }
}

class MeanField : public Op {
public:
    explicit MeanField(OpSpec spec)
        : Op(std::move(spec)),
          iterations_(spec_.attributes.integer("iterations")),
          samples_(input(0)->shape.at(0)),
          classes_(input(0)->shape.at(1)),
          width_(input(0)->shape.at(3)),
          points_(input(0)->shape.at(2) * width_),
          spatial_(points_) {
        for (size_t i = 0; i < 3; i++) plain_param(i);
        output(0, plain_layout(spec_.output_shapes[0]));
        keeps_ = needs_backward() && output_gradient(0);
        bilateral_.assign(keeps_ ? samples_ : 1, Bilateral(points_));
        lattices_ = workspace("lattices", bytes_layout(int64_t(bilateral_.size()) * bilateral_[0].bytes()));
        probabilities_ = workspace("probabilities", rows_layout(keeps_ ? iterations_ * samples_ : 1));
        touch(Pass::forward, {input(0), input(1), input(2), outputs_[0], lattices_, probabilities_});
        take_room(Pass::forward);
        build_spatial();
        for (auto& matrix : matrices_) matrix.resize(classes_ * padded());
        if (!keeps_) return;
        take_room(Pass::backward);
        moments_ = workspace("moments", plain_layout({2, ranges, padded() * padded()}, memory::data_type::f64));
        touch(Pass::backward, {lattices_, probabilities_, moments_, outputs_[0]->diff});
        for (size_t i = 0; i < 2; i++)
            if (input_gradient(i)) touch(Pass::backward, input(i)->diff);
    }

    void forward(const dnnl::stream&) override {
        multiply_matrices(false);
        for (int64_t n = 0; n < samples_; n++) {
            build_bilateral(n);
            const float *const unary = input(0)->data() + n * size(), *const first = input(1)->data() + n * size();
            each_strip([&](const Strip& strip) {
                to_rows(strip, first, -FLT_MAX, probabilities(0, n));
                softmax(strip, probabilities(0, n));
            });
            for (int64_t t = 0; t < iterations_; t++) {
                filter(probabilities(t, n), n, Pass::forward);
                const bool last = t + 1 == iterations_;
                float* const scores = last ? room(Pass::forward).scores->data() : probabilities(t + 1, n);
                each_strip([&](const Strip& strip) {
                    to_rows(strip, unary, -FLT_MAX, scores);
                    add_filtered(strip, Pass::forward, scores);
                    if (last)
                        to_planes(strip, scores, false, outputs_[0]->data() + n * size());
                    else
                        softmax(strip, scores);
                });
            }
        }
    }

    void backward(const dnnl::stream&) override {
        multiply_matrices(true);
        std::fill_n(address<double>(moments_), moments_->count(), 0.0);
        float* const given = room(Pass::backward).scores->data();
        for (int64_t n = 0; n < samples_; n++) {
            float* const of_unary = input_gradient(0) ? input(0)->diff->data() + n * size() : nullptr;
            float* const of_first = input_gradient(1) ? input(1)->diff->data() + n * size() : nullptr;
            each_strip([&](const Strip& strip) { to_rows(strip, outputs_[0]->diff->data() + n * size(), 0, given); });
            for (int64_t t = iterations_ - 1; t >= 0; t--) {
                filter(given, n, Pass::backward);
                measure_moments(probabilities(t, n));
                each_strip([&](const Strip& strip) {
                    if (of_unary) to_planes(strip, given, t + 1 < iterations_, of_unary);
                    clear(strip, given);
                    add_filtered(strip, Pass::backward, given);
                    softmax_gradient(strip, probabilities(t, n), given);
                    if (of_first && t == 0) to_planes(strip, given, false, of_first);
                });
            }
        }
        give_gradients();
    }

private:
    // What a pass works in.
    struct Room {
        TensorPtr filtering, spatial, bilateral, scores;  // filtering: a filter's own; others: rows
    };

    static constexpr int64_t ranges = 16;  // of points, whose moments are summed apart, for any number of threads alike
    static constexpr int64_t most_summed = 512;  // products that are summed in float32

    static Layout bytes_layout(int64_t bytes) { return plain_layout({bytes}, memory::data_type::u8); }
    Layout rows_layout(int64_t count) const { return plain_layout({count, points_, padded()}); }

    int64_t size() const { return classes_ * points_; }  // of a sample
    int64_t padded() const { return (classes_ + lanes - 1) / lanes * lanes; }
    const Room& room(Pass pass) const { return rooms_[int(pass)]; }

    float* probabilities(int64_t t, int64_t n) const {
        return probabilities_->data() + (keeps_ ? (t * samples_ + n) * padded() * points_ : 0);
    }

    void take_room(Pass pass) {
        const int64_t bytes = std::max(bilateral_[0].room_bytes(), spatial_.room_bytes());
        Room& taken = rooms_[int(pass)];
        taken.filtering = workspace("filtering", bytes_layout(bytes));
        for (auto* rows : {&taken.spatial, &taken.bilateral, &taken.scores}) *rows = workspace("rows", rows_layout(1));
        touch(pass, {taken.filtering, taken.spatial, taken.bilateral, taken.scores});
    }

    template <typename Work>
    void each_strip(const Work& work) const {
        Strips{1, padded(), points_}.each(
            [&](int64_t, int64_t, int64_t begin, int64_t length) { work(Strip{classes_, points_, begin, length}); });
    }

    // Sets two planes to the column and the row of each point, in deviations.
    void place(double deviation, float* planes) const {
        in_chunks(points_, [&](int64_t begin, int64_t length) {
            for (int64_t i = begin; i < begin + length; i++) {
                planes[i] = float(i % width_) / float(deviation);
                planes[points_ + i] = float(i / width_) / float(deviation);
            }
        });
    }

    // Builds the spatial filter, once, because it depends on the shape alone. It has memory of its own, because the
    // plan keeps nothing of an op from step to step. What it does not use of that is never touched, and costs nothing.
    void build_spatial() {
        std::vector<float> features(points_ * 2);
        place(spec_.attributes.real("theta_gamma"), features.data());
        spatial_memory_.reset(new char[spatial_.bytes()]);
        const std::unique_ptr<char[]> room(new char[spatial_.room_bytes()]);
        spatial_.build(features.data(), spatial_memory_.get(), room.get());
    }

    void build_bilateral(int64_t n) {
        const size_t which = keeps_ ? n : 0;
        float* const features = room(Pass::forward).spatial->data();  // it has room for these planes
        place(spec_.attributes.real("theta_alpha"), features);
        const float* const picture = input(2)->data() + n * 3 * points_;
        const float beta = float(spec_.attributes.real("theta_beta"));
        in_chunks(points_ * 3, [&](int64_t begin, int64_t length) {
            for (int64_t i = begin; i < begin + length; i++) features[2 * points_ + i] = picture[i] / beta;
        });
        bilateral_[which].build(features, address<char>(lattices_) + which * bilateral_[which].bytes(),
                                address<char>(room(Pass::forward).filtering));
    }

    // Filters rows of sample n by both filters, in backward by the transposed ones, into the pass's room.
    void filter(const float* rows, int64_t n, Pass pass) const {
        const bool transposed = pass == Pass::backward;
        char* const memory = address<char>(room(pass).filtering);
        for (int64_t at = 0; at < padded() * points_; at += lanes * points_) {
            spatial_.average(rows + at, room(pass).spatial->data() + at, transposed, memory);
            bilateral_[keeps_ ? n : 0].average(rows + at, room(pass).bilateral->data() + at, transposed, memory);
        }
    }

    // Sets the matrices by which a pass multiplies filtered rows: -compatibilities weights, transposed in forward.
    void multiply_matrices(bool backward) {
#pragma omp parallel for collapse(2) schedule(static)
        for (size_t i = 0; i < 2; i++)
            for (int64_t c = 0; c < classes_; c++)
                for (int64_t k = 0; k < classes_; k++) {
                    double sum = 0;
                    for (int64_t j = 0; j < classes_; j++)
                        sum -= double(param(2)->data()[c * classes_ + j]) * param(i)->data()[j * classes_ + k];
                    matrices_[i][backward ? c * padded() + k : k * padded() + c] = float(sum);
                }
    }

    void add_filtered(const Strip& strip, Pass pass, float* rows) const {
        add_product(strip, matrices_[0].data(), room(pass).spatial->data(), rows);
        add_product(strip, matrices_[1].data(), room(pass).bilateral->data(), rows);
    }

    // Adds the products of filtered gradients and probabilities p to moments_.
    void measure_moments(const float* p) const {
        const Room& from = room(Pass::backward);
        const int64_t width = (points_ + ranges - 1) / ranges, moments = padded() * padded();
#pragma omp parallel for collapse(2) schedule(static)
        for (int64_t i = 0; i < 2; i++)
            for (int64_t range = 0; range < ranges; range++) {
                const int64_t end = std::min(points_, (range + 1) * width);
                for (int64_t at = range * width; at < end; at += most_summed)
                    add_moments({classes_, points_, at, std::min(most_summed, end - at)},
                                (i == 0 ? from.spatial : from.bilateral)->data(), p,
                                address<double>(moments_) + (i * ranges + range) * moments);
            }
    }

    // Writes the gradients of the parameters, from the moments M[c, k], the sums over the points of filtered gradients
    // of class c times probabilities of class k: -compatibilities' M for weights, -M weights' for compatibilities.
    void give_gradients() {
        const int64_t moments = padded() * padded();
        double* const sums = address<double>(moments_);
        for (int64_t i = 0; i < 2; i++)
            for (int64_t range = 1; range < ranges; range++)
                for (int64_t at = 0; at < moments; at++)
                    sums[i * ranges * moments + at] += sums[(i * ranges + range) * moments + at];
        const auto moment = [&](int64_t i, int64_t c, int64_t k) {
            return sums[i * ranges * moments + c * padded() + k];
        };
        const auto factor = [&](size_t i, int64_t row, int64_t column) {
            return double(param(i)->data()[row * classes_ + column]);
        };
        const auto give = [&](size_t i, int64_t row, int64_t column, double value) {
            const TensorPtr& diff = param(i)->diff;
            float& wanted = diff->data()[row * classes_ + column];
            wanted = float(value) + (diff->accumulate ? wanted : 0);
        };
#pragma omp parallel for schedule(static)
        for (int64_t a = 0; a < classes_; a++)
            for (int64_t b = 0; b < classes_; b++) {
                double of_weights[2] = {}, of_compatibilities = 0;
                for (int64_t i = 0; i < 2; i++)
                    for (int64_t c = 0; c < classes_; c++) {
                        of_weights[i] -= factor(2, c, a) * moment(i, c, b);
                        of_compatibilities -= moment(i, a, c) * factor(i, b, c);
                    }
                for (size_t i = 0; i < 2; i++)
                    if (param_gradient(i)) give(i, a, b, of_weights[i]);
                if (param_gradient(2)) give(2, a, b, of_compatibilities);
            }
    }

    int64_t iterations_, samples_, classes_, width_, points_;
    bool keeps_ = false;  // whether forward() keeps what backward() needs
    Spatial spatial_;
    std::unique_ptr<char[]> spatial_memory_;
    std::vector<Bilateral> bilateral_;  // of each sample
    TensorPtr lattices_;                // memory of bilateral_, for as many vertices as there may be
    TensorPtr probabilities_;           // rows, of each iteration and sample
    TensorPtr moments_;                 // (filters, ranges, padded classes, padded classes)
    std::vector<float> matrices_[2];    // (classes, padded classes), by filter
    Room rooms_[2];                     // by pass
};

static const RegisterOp<MeanField> registered("MeanField");

}  // namespace
}  // namespace engine
