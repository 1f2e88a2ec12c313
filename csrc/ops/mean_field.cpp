// Mean field inference in a conditional random field with Gaussian potentials (Zheng et al. 2015, arXiv 1502.03240).
// inputs: unary scores, first scores (both (N, C, H, W)), pictures (N, 3, H, W), all row-major; params: (1, 1, C, C),
// weights of the spatial and of the bilateral filter, and compatibilities; output: scores, as unary; attributes:
// iterations, theta_gamma (the spatial filter's deviation, in pixels), theta_alpha and theta_beta (the bilateral one's,
// in pixels and in values of the picture). In each iteration, with the softmax p of the scores, they become
// unary - compatibilities (spatial weights S(p) + bilateral weights B(p)), where the filters S and B are means.
// There is no gradient of the picture.
#include <algorithm>
#include <cmath>
#include <memory>

#include "kernels/add_row.h"
#include "kernels/chunks.h"
#include "kernels/lattice.h"
#include "kernels/vectorised.h"
#include "ops/common/onednn_util.h"

namespace engine {
namespace {

ENGINE_VECTORISED double product(const float* a, const float* b, int64_t length) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < length; i++) sum += double(a[i] * b[i]);
    return sum;
}

// A filter that averages: each point divided by what a plane of ones becomes there.
class Averaging {
public:
    Averaging(const std::vector<float>& features, int64_t points)
        : lattice_(features.data(), points, int64_t(features.size()) / points), scales_(points, 1), points_(points) {
        std::vector<float> sums(points);
        lattice_.filter(scales_.data(), sums.data(), 1, false);
        for (int64_t i = 0; i < points; i++) scales_[i] = 1 / (sums[i] + 1e-20f);
    }

    // x, y: (planes, points)
    void forward(const float* x, float* y, int64_t planes) const {
        in_blocks(planes, [&](int64_t first, int64_t count) {
            lattice_.filter(x + first * points_, y + first * points_, count, false);
            for (int64_t plane = first; plane < first + count; plane++) scale(y + plane * points_);
        });
    }

    // Adds to `wanted`. given: is lost. given, wanted: as y and x
    void backward(float* given, float* wanted, int64_t planes) const {
        in_blocks(planes, [&](int64_t first, int64_t count) {
            for (int64_t plane = first; plane < first + count; plane++) scale(given + plane * points_);
            std::vector<float> filtered(count * points_);
            lattice_.filter(given + first * points_, filtered.data(), count, true);
            add_row(filtered.data(), wanted + first * points_, count * points_);
        });
    }

private:
    // Calls work(first plane, how many) in parallel.
    template <typename Work>
    static void in_blocks(int64_t planes, const Work& work) {
#pragma omp parallel for schedule(dynamic)
        for (int64_t first = 0; first < planes; first += Lattice::most_planes)
            work(first, std::min(Lattice::most_planes, planes - first));
    }

    void scale(float* plane) const {
        for (int64_t i = 0; i < points_; i++) plane[i] *= scales_[i];
    }

    Lattice lattice_;
    std::vector<float> scales_;
    int64_t points_;
};

class MeanField : public Op {
public:
    explicit MeanField(OpSpec spec)
        : Op(std::move(spec)),
          iterations_(spec_.attributes.integer("iterations")),
          samples_(input(0)->shape.at(0)),
          classes_(input(0)->shape.at(1)),
          width_(input(0)->shape.at(3)),
          points_(input(0)->shape.at(2) * width_),
          bilateral_(samples_) {
        for (size_t i = 0; i < 3; i++) plain_param(i);
        output(0, plain_layout(spec_.output_shapes[0]));
        const bool differentiable = needs_backward() && output_gradient(0);
        probabilities_ = workspace("probabilities", plain_layout({differentiable ? iterations_ * samples_ : 1,  //
                                                                  classes_, points_}));
        for (auto* planes : {&spatial_planes_, &bilateral_planes_, &message_}) planes->resize(classes_ * points_);
        touch(Pass::forward, {input(0), input(1), input(2), outputs_[0], probabilities_});
        if (!differentiable) return;
        keeps_ = true;
        for (auto* planes : {&given_, &of_message_, &of_planes_}) planes->resize(classes_ * points_);
        touch(Pass::backward, {probabilities_, outputs_[0]->diff});
        for (size_t i = 0; i < 2; i++)
            if (input_gradient(i)) touch(Pass::backward, input(i)->diff);
    }

    void forward(const dnnl::stream&) override {
        if (!spatial_) spatial_ = std::make_unique<Averaging>(spatial_features(), points_);
        for (int64_t n = 0; n < samples_; n++) {
            bilateral_[n] = std::make_unique<Averaging>(bilateral_features(n), points_);
            const float *const unary = input(0)->data() + n * size(), *scores = input(1)->data() + n * size();
            float* const top = outputs_[0]->data() + n * size();
            for (int64_t t = 0; t < iterations_; t++, scores = top) {
                softmax(scores, probabilities(t, n));
                send(probabilities(t, n), n);
                std::copy_n(unary, size(), top);
                multiply(compatibilities(), message_.data(), -1, false, top);
            }
            if (!keeps_) bilateral_[n].reset();
        }
    }

    void backward(const dnnl::stream&) override {
        std::vector<double> sums[3];
        for (auto& each : sums) each.assign(classes_ * classes_, 0);
        for (int64_t n = 0; n < samples_; n++) {
            float* const of_unary = input_gradient(0) ? input(0)->diff->data() + n * size() : nullptr;
            if (of_unary) std::fill_n(of_unary, size(), 0.f);
            std::copy_n(outputs_[0]->diff->data() + n * size(), size(), given_.data());
            for (int64_t t = iterations_ - 1; t >= 0; t--) {
                if (of_unary) add_row(given_.data(), of_unary, size());
                differentiate(t, n, sums);
            }
            if (input_gradient(1)) std::copy_n(given_.data(), size(), input(1)->diff->data() + n * size());
        }
        for (size_t i = 0; i < 3; i++) {
            if (!param_gradient(i)) continue;
            float* const wanted = param(i)->diff->data();
            for (size_t k = 0; k < sums[i].size(); k++)
                wanted[k] = float(sums[i][k]) + (param(i)->diff->accumulate ? wanted[k] : 0);
        }
    }

private:
    int64_t size() const { return classes_ * points_; }  // of a sample

    const float* compatibilities() const { return param(2)->data(); }

    float* probabilities(int64_t t, int64_t n) const {
        return probabilities_->data() + (keeps_ ? (t * samples_ + n) * size() : 0);
    }

    std::vector<float> spatial_features() const {
        const float gamma = float(spec_.attributes.real("theta_gamma"));
        std::vector<float> features(points_ * 2);
        for (int64_t i = 0; i < points_; i++) {
            features[i * 2] = float(i % width_) / gamma;
            features[i * 2 + 1] = float(i / width_) / gamma;
        }
        return features;
    }

    std::vector<float> bilateral_features(int64_t n) const {
        const float alpha = float(spec_.attributes.real("theta_alpha"));
        const float beta = float(spec_.attributes.real("theta_beta"));
        const float* const picture = input(2)->data() + n * 3 * points_;
        std::vector<float> features(points_ * 5);
        for (int64_t i = 0; i < points_; i++) {
            float* const feature = &features[i * 5];
            feature[0] = float(i % width_) / alpha;
            feature[1] = float(i / width_) / alpha;
            for (int64_t color = 0; color < 3; color++) feature[2 + color] = picture[color * points_ + i] / beta;
        }
        return features;
    }

    // y += factor W x, or W transposed. x, y: (classes, points)
    void multiply(const float* weights, const float* x, float factor, bool transposed, float* y) const {
        Strips{1, classes_, points_}.each([&](int64_t, int64_t, int64_t begin, int64_t length) {
            for (int64_t c = 0; c < classes_; c++)
                for (int64_t k = 0; k < classes_; k++) {
                    const float weight = transposed ? weights[k * classes_ + c] : weights[c * classes_ + k];
                    if (weight == 0) continue;
                    add_scaled(factor * weight, x + k * points_ + begin, y + c * points_ + begin, length);
                }
        });
    }

    // sums[c][k] += factor times the product of plane c of a and plane k of b.
    void add_plane_products(const float* a, const float* b, double factor, std::vector<double>& sums) const {
#pragma omp parallel for
        for (int64_t c = 0; c < classes_; c++)
            for (int64_t k = 0; k < classes_; k++)
                sums[c * classes_ + k] += factor * product(a + c * points_, b + k * points_, points_);
    }

    // The filtered planes and the message of an iteration.
    void send(const float* p, int64_t n) {
        spatial_->forward(p, spatial_planes_.data(), classes_);
        bilateral_[n]->forward(p, bilateral_planes_.data(), classes_);
        std::fill(message_.begin(), message_.end(), 0.f);
        multiply(param(0)->data(), spatial_planes_.data(), 1, false, message_.data());
        multiply(param(1)->data(), bilateral_planes_.data(), 1, false, message_.data());
    }

    // given_: the gradient of the scores after iteration t becomes that of those before it. Adds to those of params.
    void differentiate(int64_t t, int64_t n, std::vector<double>* sums) {
        const float* const p = probabilities(t, n);
        send(p, n);
        add_plane_products(given_.data(), message_.data(), -1, sums[2]);
        std::fill(of_message_.begin(), of_message_.end(), 0.f);
        multiply(compatibilities(), given_.data(), -1, true, of_message_.data());
        add_plane_products(of_message_.data(), spatial_planes_.data(), 1, sums[0]);
        add_plane_products(of_message_.data(), bilateral_planes_.data(), 1, sums[1]);
        std::fill(given_.begin(), given_.end(), 0.f);  // from here on, of the probabilities
        const Averaging* const filters[] = {spatial_.get(), bilateral_[n].get()};
        for (size_t i = 0; i < 2; i++) {
            std::fill(of_planes_.begin(), of_planes_.end(), 0.f);
            multiply(param(i)->data(), of_message_.data(), 1, true, of_planes_.data());
            filters[i]->backward(of_planes_.data(), given_.data(), classes_);
        }
#pragma omp parallel for
        for (int64_t i = 0; i < points_; i++) {
            float along = 0;
            for (int64_t c = 0; c < classes_; c++) along += p[c * points_ + i] * given_[c * points_ + i];
            for (int64_t c = 0; c < classes_; c++)
                given_[c * points_ + i] = p[c * points_ + i] * (given_[c * points_ + i] - along);
        }
    }

    void softmax(const float* scores, float* p) const {
#pragma omp parallel for
        for (int64_t i = 0; i < points_; i++) {
            float greatest = scores[i], sum = 0;
            for (int64_t c = 1; c < classes_; c++) greatest = std::max(greatest, scores[c * points_ + i]);
            for (int64_t c = 0; c < classes_; c++)
                sum += p[c * points_ + i] = std::exp(scores[c * points_ + i] - greatest);
            for (int64_t c = 0; c < classes_; c++) p[c * points_ + i] /= sum;
        }
    }

    int64_t iterations_, samples_, classes_, width_, points_;
    bool keeps_ = false;  // what backward() needs
    TensorPtr probabilities_;
    std::unique_ptr<Averaging> spatial_;
    std::vector<std::unique_ptr<Averaging>> bilateral_;  // of each sample
    std::vector<float> spatial_planes_, bilateral_planes_, message_;
    std::vector<float> given_, of_message_, of_planes_;
};

static const RegisterOp<MeanField> registered("MeanField");

}  // namespace
}  // namespace engine
