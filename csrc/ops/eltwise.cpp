// Element by element: the weighted sum, the product or the maximum of several blobs of one shape.
// EltwiseSum, EltwiseProduct, EltwiseMax. inputs: two or more; attributes (EltwiseSum): coefficients (one per
// input), relu (what is negative becomes 0).
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "elementwise.h"
#include "onednn_util.h"
#include "vectorised.h"

namespace engine {

namespace {

ENGINE_VECTORISED void multiply(const float* a, const float* b, float* y, int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) y[i] = a[i] * b[i];
}

// Where x reaches `bar` or, with `strict`, exceeds it, y is x and `which` becomes `index`.
ENGINE_VECTORISED void raise(const float* bar, const float* x, bool strict, uint8_t index, float* y, uint8_t* which,
                             int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) {
        const bool higher = strict ? x[i] > bar[i] : !(bar[i] > x[i]);
        y[i] = higher ? x[i] : bar[i];
        which[i] = higher ? index : which[i];
    }
}

// The gradient of a coefficient times x behind a ReLU whose result is y.
ENGINE_VECTORISED void pass_positive(const float* y, const float* given, float coefficient, float* into,
                                     int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) into[i] = y[i] > 0 ? coefficient * given[i] : 0.f;
}

ENGINE_VECTORISED void select(const float* x, const uint8_t* which, uint8_t index, float* y, int64_t length) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) y[i] = which[i] == index ? x[i] : 0.f;
}

}  // namespace

// What the three have in common: their operands in one layout.
class Eltwise : public Op {
public:
    explicit Eltwise(OpSpec spec) : Op(std::move(spec)), layout_(common_layout()) {
        y_ = output(0, layout_)->memory;
        count_ = y_.count();
        touch(Pass::forward, outputs_[0]);
        for (const auto& tensor : spec_.inputs) {
            x_.emplace_back(reading(tensor, layout_, forward_calls_));
            touch(Pass::forward, tensor);
            may_overwrite(Pass::forward, tensor, outputs_[0]);
        }
        fresh_scratch();
    }

protected:
    // Blocked if any input is.
    Layout common_layout() const {
        for (const auto& tensor : spec_.inputs)
            if (!is_plain(tensor->layout)) return tensor->layout;
        return input(0)->layout;
    }

    // The gradient of input i, to be written in layout_; backward_calls_ then bring it into the input's layout.
    struct Gradient {
        size_t i;
        Numbers target;
    };
    void want_gradient(size_t i) {
        const TensorPtr& wanted = input(i)->diff;
        const Target target = writing(wanted, layout_);
        finish(target, backward_calls_);
        gradients_.push_back({i, target.memory});
        touch(Pass::backward, {outputs_[0]->diff, wanted});
        may_overwrite(Pass::backward, outputs_[0]->diff, wanted);
    }

    // write(i, given, into, begin, length) for every wanted gradient and piece of [0, count_).
    template <typename Write>
    void write_gradients(const dnnl::stream& stream, const Write& write) {
        if (gradients_.empty()) return;
        const Numbers all(outputs_[0]->diff->memory);
        in_chunks(count_, [&](int64_t begin, int64_t length) {
            // The first gradient may be written over the given one.
            alignas(64) float piece[chunk_size], buffer[chunk_size];
            const float* const given = all.read(begin, length, piece);
            if (given != piece) std::copy_n(given, length, piece);
            for (const auto& [i, target] : gradients_) {
                float* const into = target.open(begin, buffer);
                write(i, piece, into, begin, length);
                target.close(begin, length, into);
            }
        });
        run(backward_calls_, stream);
    }

    Layout layout_;
    int64_t count_ = 0;       // elements in memory
    std::vector<Numbers> x_;  // the inputs in layout_, once forward_calls_ have run
    Numbers y_;
    std::vector<Gradient> gradients_;
};

class EltwiseSum : public Eltwise {
public:
    explicit EltwiseSum(OpSpec spec) : Eltwise(std::move(spec)), relu_(spec_.attributes.flag("relu")) {
        for (double coefficient : spec_.attributes.reals("coefficients")) coefficients_.push_back(float(coefficient));
        if (!needs_backward() || !output_gradient(0)) return;
        if (relu_) touch(Pass::backward, outputs_[0]);
        // Inputs that are summed as they are have one gradient in common: one buffer, which without ReLU is that of the
        // sum.
        TensorPtr common = relu_ ? nullptr : outputs_[0]->diff;
        for (size_t i = 0; i < x_.size(); i++) {
            if (!input_gradient(i)) continue;
            const bool as_it_is = coefficients_[i] == 1 && input(i)->layout == layout_;
            if (as_it_is && common) {
                common->buffer->join(input(i)->diff->buffer);
                continue;
            }
            want_gradient(i);
            if (as_it_is) common = input(i)->diff;
        }
    }

    void forward(const dnnl::stream& stream) override {
        run(forward_calls_, stream);
        weighted_sum(x_, coefficients_, y_, count_, relu_);
    }

    void backward(const dnnl::stream& stream) override {
        write_gradients(stream, [&](size_t i, const float* given, float* into, int64_t begin, int64_t length) {
            if (!relu_) return scaled(given, coefficients_[i], into, length);
            alignas(64) float y[chunk_size];
            pass_positive(y_.read(begin, length, y), given, coefficients_[i], into, length);
        });
    }

private:
    std::vector<float> coefficients_;
    bool relu_;
};

class EltwiseProduct : public Eltwise {
public:
    explicit EltwiseProduct(OpSpec spec) : Eltwise(std::move(spec)) {
        if (!needs_backward() || !output_gradient(0)) return;
        for (const auto& tensor : spec_.inputs) {
            backward_x_.emplace_back(reading(tensor, layout_, backward_reads_));
            touch(Pass::backward, tensor);
        }
        for (size_t i = 0; i < x_.size(); i++)
            if (input_gradient(i)) want_gradient(i);
    }

    void forward(const dnnl::stream& stream) override {
        const auto times = [](size_t, const float* a, const float* b, float* y, int64_t, int64_t length) {
            multiply(a, b, y, length);
        };
        run(forward_calls_, stream);
        fold_chunks(x_, y_, count_, times);
    }

    // Each gradient is that of y times all the other inputs, which holds where an input is zero, too.
    void backward(const dnnl::stream& stream) override {
        run(backward_reads_, stream);
        write_gradients(stream, [&](size_t i, const float* given, float* into, int64_t begin, int64_t length) {
            alignas(64) float x[chunk_size];
            const float* so_far = given;
            for (size_t j = 0; j < backward_x_.size(); j++) {
                if (j == i) continue;
                multiply(so_far, backward_x_[j].read(begin, length, x), into, length);
                so_far = into;
            }
        });
    }

private:
    std::vector<Numbers> backward_x_;
    Calls backward_reads_;
};

class EltwiseMax : public Eltwise {
public:
    explicit EltwiseMax(OpSpec spec) : Eltwise(std::move(spec)) {
        if (x_.size() > 256) throw std::invalid_argument("the maximum of more than 256 blobs");
        which_ = workspace("which", plain_layout({count_}, memory::data_type::u8));
        touch(Pass::forward, which_);
        if (!needs_backward() || !output_gradient(0)) return;
        touch(Pass::backward, which_);
        for (size_t i = 0; i < x_.size(); i++)
            if (input_gradient(i)) want_gradient(i);
    }

    // Where two are equal the gradient goes where Caffe sends it: to the second of the first two, else to the earlier.
    void forward(const dnnl::stream& stream) override {
        uint8_t* const which = static_cast<uint8_t*>(which_->buffer->address());
        const auto higher = [&](size_t i, const float* a, const float* b, float* y, int64_t begin, int64_t length) {
            if (i == 1) std::memset(which + begin, 0, length);
            raise(a, b, i > 1, uint8_t(i), y, which + begin, length);
        };
        run(forward_calls_, stream);
        fold_chunks(x_, y_, count_, higher);
    }

    void backward(const dnnl::stream& stream) override {
        const uint8_t* const which = static_cast<const uint8_t*>(which_->buffer->address());
        write_gradients(stream, [&](size_t i, const float* given, float* into, int64_t begin, int64_t length) {
            select(given, which + begin, uint8_t(i), into, length);
        });
    }

private:
    TensorPtr which_;
};

static const RegisterOp<EltwiseSum> sum("EltwiseSum");
static const RegisterOp<EltwiseProduct> product("EltwiseProduct");
static const RegisterOp<EltwiseMax> maximum("EltwiseMax");

}  // namespace engine
