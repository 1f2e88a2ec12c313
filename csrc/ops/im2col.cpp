// Unrolls the windows of a convolution into channels; in padding they are zeros.
// inputs: x (N, C, ...), float32, row-major; outputs: (N, C * count of kernel, out...); attributes: kernel, stride,
// pad, dilation (one for each spatial axis).
#include <algorithm>

#include "ops/common/onednn_util.h"

namespace engine {
namespace {

class Im2col : public Op {
public:
    explicit Im2col(OpSpec spec) : Op(std::move(spec)) {
        const Dims &in = input(0)->shape, &out = spec_.output_shapes[0];
        planes_ = in[0] * in[1];
        plane_ = count_of({in.begin() + 2, in.end()});
        find_sources({in.begin() + 2, in.end()}, {out.begin() + 2, out.end()});
        output(0, plain_layout(out));
        touch(Pass::forward, {input(0), outputs_[0]});
        if (input_gradient(0) && output_gradient(0)) touch(Pass::backward, {outputs_[0]->diff, input(0)->diff});
    }

    void forward(const dnnl::stream&) override {
        const int64_t columns = int64_t(sources_.size());
#pragma omp parallel for
        for (int64_t plane = 0; plane < planes_; plane++) {
            const float* const x = input(0)->data() + plane * plane_;
            float* const y = outputs_[0]->data() + plane * columns;
            for (int64_t i = 0; i < columns; i++) y[i] = sources_[i] == padding ? 0 : x[sources_[i]];
        }
    }

    void backward(const dnnl::stream&) override {
        const int64_t columns = int64_t(sources_.size());
#pragma omp parallel for
        for (int64_t plane = 0; plane < planes_; plane++) {
            const float* const given = outputs_[0]->diff->data() + plane * columns;
            float* const wanted = input(0)->diff->data() + plane * plane_;
            std::fill_n(wanted, plane_, 0.f);
            for (int64_t i = 0; i < columns; i++)
                if (sources_[i] != padding) wanted[sources_[i]] += given[i];
        }
    }

private:
    static constexpr int64_t padding = -1;

    // Sets sources_.
    void find_sources(const Dims& in, const Dims& out) {
        const auto& attributes = spec_.attributes;
        const Dims kernel = attributes.integers("kernel"), stride = attributes.integers("stride"),
                   pad = attributes.integers("pad"), dilation = attributes.integers("dilation");
        const int64_t outputs = count_of(out);
        sources_.resize(count_of(kernel) * outputs);
        for (int64_t i = 0; i < int64_t(sources_.size()); i++) {
            int64_t place = i % outputs, tap = i / outputs, source = 0, step = 1;
            for (size_t axis = in.size(); axis-- > 0; step *= in[axis], place /= out[axis], tap /= kernel[axis]) {
                const int64_t at = place % out[axis] * stride[axis] - pad[axis] + tap % kernel[axis] * dilation[axis];
                if (at < 0 || at >= in[axis]) {
                    source = padding;
                    break;
                }
                source += at * step;
            }
            sources_[i] = source;
        }
    }

    int64_t planes_, plane_;        // N C, and the pixels of a plane
    std::vector<int64_t> sources_;  // (count of kernel, out...): the pixel of the plane that each is, or `padding`
};

static const RegisterOp<Im2col> registered("Im2col");

}  // namespace
}  // namespace engine
