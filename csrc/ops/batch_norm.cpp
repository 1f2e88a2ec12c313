// Computes batch normalisation, and what the graph fuses into it: the Scale layer that follows, an addition (the
// shortcut of a residual block), a ReLU, and the Split of the result between two readers, whose gradients are summed on
// the way.
// inputs: x (N, C, ...), float32 or bf16, any layout with rows of channels, optionally what is added (as x); outputs: y
// (as x), once for each reader.
// params: mean sum (C), variance sum (C), factor (1), or, for layers of type BN, mean (C) and variance (C), or no
// statistics at all; then scale (C) and shift (C) with the attributes of these names. attributes: eps,
// moving_average_fraction, use_global_stats, sync, scale, shift, relu, ceiling (of the ReLU, if it has one).
//
// With `sync`, statistics are those of the batches of all ranks, which have the same size: totals are summed over the
// ranks in the middle of forward and of backward (OpSpec::ranks).
//
// The kernels are our own because memory limits this op: as separate ops, these layers would read and write activations
// three times as often.
#include <cmath>
#include <numeric>

#include "kernels/norm_grid.h"
#include "ops/common/channel_layout.h"
#include "ops/common/parts.h"

namespace engine {
namespace {

constexpr auto nothing = [](auto&&...) {};

class BatchNorm : public Op {
public:
    explicit BatchNorm(OpSpec spec)
        : Op(std::move(spec)),
          layout_(dense(input(0)->layout)),
          rows_(known_rows(layout_)),
          grid_(rows_, x_rows(), input(0)->is_bf16() ? 2 : 4) {
        const auto& attributes = spec_.attributes;
        eps_ = float(attributes.real("eps"));
        fraction_ = float(attributes.real("moving_average_fraction"));
        global_ = attributes.flag("use_global_stats");
        synchronised_ = attributes.flag("sync");
        const bool has_scale = attributes.flag("scale"), has_shift = attributes.flag("shift");
        statistics_ = int(spec_.params.size()) - has_scale - has_shift;
        scale_ = has_scale ? statistics_ : -1;
        shift_ = has_shift ? statistics_ + has_scale : -1;
        relu_ = attributes.flag("relu");
        if (attributes.has("ceiling")) ceiling_ = float(attributes.real("ceiling"));
        for (size_t i = 0; i < spec_.params.size(); i++) plain_param(i);
        for (TensorPtr* each : {&mean_, &variance_, &factor_, &offset_}) {
            *each = workspace("statistics", plain_layout({grid_.channels()}));
            touch(Pass::forward, *each);
        }
        totals_.resize(size_t(2 * grid_.channels()));
        build_forward();
        if (needs_backward()) build_backward();
    }

    void forward(const dnnl::stream& stream) override {
        run(forward_calls_, stream);
        input(0)->is_bf16() ? forward_of<bf16>(false) : forward_of<float>(false);
        if (!global_ && statistics_ > 0) update_statistics();
    }

    bool repeatable() const override { return needs_backward(); }  // else statistics are gone by then

    void repeat(const dnnl::stream& stream) override {
        run(forward_calls_, stream);
        input(0)->is_bf16() ? forward_of<bf16>(true) : forward_of<float>(true);
    }

    void backward(const dnnl::stream& stream) override {
        input(0)->is_bf16() ? backward_of<bf16>() : backward_of<float>();
        run(backward_calls_, stream);
    }

private:
    // Results larger than this leave the caches before they are read.
    static constexpr int64_t cached_bytes = int64_t(16) << 20;

    // Returns the layout of all blobs but x, which may be some channels of a larger blob (a chain of Concats).
    static Layout dense(const Layout& x) {
        const Layout like = layout_like(x, x.get_dims(), x.get_data_type());
        return like.get_inner_blks() == x.get_inner_blks() ? like : x;
    }

    // Returns the rows of x: rows_ with the strides of the larger blob.
    ChannelRows x_rows() const {
        ChannelRows result = rows_;
        if (input(0)->layout == layout_) return result;
        const Dims strides = input(0)->layout.get_strides();
        result.outer_stride = strides[0];
        if (result.block_stride) result.block_stride = strides[1];
        if (result.lanes > 1) result.inner_stride = strides.back();
        return result;
    }

    void build_forward() {
        const Layout& layout = layout_;
        output(0, layout);
        for (size_t i = 1; i < outputs_.size(); i++) output_view(i, layout, outputs_[0], false);
        touch(Pass::forward, {input(0), outputs_[0]});
        sums_ = scratch(plain_layout({2, grid_.chunks(), grid_.channels()}));
        if (!adds()) {
            if (input(0)->layout == layout) may_overwrite(Pass::forward, input(0), outputs_[0]);
            return;
        }
        added_ = reading(input(1), layout, forward_calls_);
        touch(Pass::forward, input(1));
        may_overwrite(Pass::forward, input(1), outputs_[0]);
    }

    void build_backward() {
        for (TensorPtr* each : {&mean_, &variance_, &factor_, &offset_}) touch(Pass::backward, *each);
        touch(Pass::backward, input(0));
        for (size_t i = 0; i < outputs_.size(); i++) {
            if (!output_gradient(i)) continue;
            given_.push_back(outputs_[i]->diff);
            touch(Pass::backward, given_.back());
        }
        if (given_.size() > 2) throw std::invalid_argument("more than two readers");
        if (relu_ && adds()) touch(Pass::backward, outputs_[0]);
        if (adds() && input_gradient(1))
            build_shortcut_gradient();
        else if (given_.size() == 2 || (relu_ && adds()))
            build_kept_gradient();
        if (!input_gradient(0)) return;
        touch(Pass::backward, input(0)->diff);
        for (const auto& each : given_) may_overwrite(Pass::backward, each, input(0)->diff);
    }

    void build_kept_gradient() {
        const TensorPtr kept = workspace("gradient", layout_);
        kept_ = kept->memory;
        touch(Pass::backward, kept);
        may_overwrite(Pass::backward, given_[0], kept);
        if (input_gradient(0)) may_overwrite(Pass::backward, kept, input(0)->diff);
    }

    // The gradient after the addition is that of both its terms: the second input's is written, or shared, as it is.
    void build_shortcut_gradient() {
        const TensorPtr& wanted = input(1)->diff;
        const Target target = writing(wanted, layout_);
        touch(Pass::backward, wanted);
        if (target.final || relu_ || given_.size() == 2 || spec_.keep_all) {
            kept_ = target.memory;
            if (!target.final) may_overwrite(Pass::backward, given_[0], wanted);
        } else {
            given_[0]->buffer->join(wanted->buffer);
        }
        finish(target, backward_calls_);
    }

    bool adds() const { return spec_.inputs.size() == 2; }

    template <typename T>
    bool goes_past_caches(const T* result) const {
        return grid_.per_channel() * grid_.channels() * int64_t(sizeof(T)) > cached_bytes &&
               grid_.aligned(sizeof(T), 64) && reinterpret_cast<uintptr_t>(result) % 64 == 0;
    }

    // again: whether to use the statistics of the last call.
    template <typename T>
    void forward_of(bool again) {
        const NormKernels<T>& kernels = norm_kernels<T>();
        Normalisation<T> job{};
        job.x = address<T>(input(0));
        job.residual = adds() ? address<T>(added_) : nullptr;
        job.relu = relu_;
        job.ceiling = ceiling_;
        job.y = address<T>(outputs_[0]);
        job.past_caches = job.y != job.x && job.y != job.residual && goes_past_caches(job.y);
        const auto write = [&](int64_t chunk, int64_t first, int64_t last) {
            normalise(kernels, job, chunk, first, last);
        };
        if (again) {
            grid_.run(nothing, nothing, write);
        } else if (global_) {
            grid_.run(nothing, [&](const ChannelSlice& slice) { load_statistics(slice); }, write);
        } else {
            find_pilot(kernels, job.x);
            run_grid([&](int64_t chunk, int64_t first, int64_t last) { measure(kernels, job.x, chunk, first, last); },
                     [&](const ChannelSlice& slice) { gather_statistics(slice); }, [&] { share_statistics(); },
                     [&](const ChannelSlice& slice) { set_statistics(slice); }, write);
        }
        clear_padding(rows_, sizeof(T), job.y);
    }

    // Runs as NormGrid::run() does; its middle is gather(slice), which sets totals, and finish(slice), which reads
    // them. With several ranks, share() sums the totals over the ranks in between: all slices are gathered before it.
    template <typename First, typename Gather, typename Share, typename Finish, typename Second>
    void run_grid(const First& first, const Gather& gather, const Share& share, const Finish& finish,
                  const Second& second) const {
        if (ranks() > 1) {
            grid_.run(first, gather, nothing);
            share();
            return grid_.run(nothing, finish, second);
        }
        const auto middle = [&](const ChannelSlice& slice) {
            gather(slice);
            finish(slice);
        };
        grid_.run(first, middle, second);
    }

    template <typename T>
    void normalise(const NormKernels<T>& kernels, const Normalisation<T>& job, int64_t chunk, int64_t first,
                   int64_t last) const {
        grid_.panels(chunk, first, last,
                     [&](const ChannelSlice& slice, const Panel& panel, int64_t begin, int64_t x_begin) {
                         const Coefficients mean(slice, of(mean_, slice)), factor(slice, of(factor_, slice)),
                             offset(slice, of(offset_, slice));
                         Normalisation<T> piece = job;
                         piece.x += x_begin;
                         if (piece.residual) piece.residual += begin;
                         piece.mean = mean;
                         piece.scale = factor;
                         piece.shift = offset;
                         piece.y += begin;
                         kernels.normalise(panel, piece);
                     });
    }

    static float* values(const TensorPtr& tensor) { return tensor->data(); }

    static const float* of(const TensorPtr& tensor, const ChannelSlice& slice) {
        return tensor->data() + slice.channel;
    }

    // Returns sums of a chunk from a channel on. Forward sums deviations (which = 0) and their squares (1), backward
    // gradients g (0) and g (x - mean) (1).
    float* sums(int which, int64_t chunk, int64_t channel) const {
        return address<float>(sums_) + (which * grid_.chunks() + chunk) * grid_.channels() + channel;
    }

    // Sets both sums of a chunk. Calls add(slice, panel, begin, begin in x, sums, other sums) for its panels; sums are
    // of lanes.
    template <typename Add>
    void sum_chunk(int64_t chunk, int64_t first, int64_t last, const Add& add) const {
        const int64_t from = grid_.slice(first).channel,
                      to = grid_.slice(last - 1).channel + grid_.slice(last - 1).count;
        for (int which : {0, 1}) std::fill(sums(which, chunk, from), sums(which, chunk, from) + (to - from), 0.f);
        grid_.panels(
            chunk, first, last, [&](const ChannelSlice& slice, const Panel& panel, int64_t begin, int64_t x_begin) {
                float *const some = sums(0, chunk, slice.channel), *const others = sums(1, chunk, slice.channel);
                if (!slice.run) return add(slice, panel, begin, x_begin, some, others);
                float lanes[2][16] = {};
                add(slice, panel, begin, x_begin, lanes[0], lanes[1]);
                for (int64_t lane = 0; lane < panel.lanes; lane++) {
                    *some += lanes[0][lane];
                    *others += lanes[1][lane];
                }
            });
    }

    // Sets mean_ to the mean of a few values. Sums of deviations from it lose no digits if it is near the mean of all.
    template <typename T>
    void find_pilot(const NormKernels<T>& kernels, const T* x) const {
        grid_.sample([&](const ChannelSlice& slice, const Panel& panel, int64_t begin) {
            float lanes[2][ChannelSlice::widest] = {};
            float* const pilot = values(mean_) + slice.channel;
            kernels.sum(panel, x + begin, nullptr, lanes[0], lanes[1]);
            if (slice.run)
                *pilot = std::accumulate(lanes[0], lanes[0] + panel.lanes, 0.f);
            else
                std::copy_n(lanes[0], slice.count, pilot);
            for (int64_t i = 0; i < slice.count; i++) pilot[i] /= float(panel.rows * (slice.run ? panel.lanes : 1));
        });
    }

    template <typename T>
    void measure(const NormKernels<T>& kernels, const T* x, int64_t chunk, int64_t first, int64_t last) const {
        sum_chunk(
            chunk, first, last,
            [&](const ChannelSlice& slice, const Panel& panel, int64_t, int64_t x_begin, float* sum, float* square) {
                kernels.sum(panel, x + x_begin, Coefficients(slice, of(mean_, slice)), sum, square);
            });
    }

    double& total(int which, int64_t c) { return totals_[size_t(which * grid_.channels() + c)]; }

    // Sets both totals of a slice's channels to their sums over all chunks.
    void add_chunks(const ChannelSlice& slice) {
        for (int which : {0, 1}) {
            double* const totals = &total(which, slice.channel);
            std::fill_n(totals, slice.count, 0.0);
            for (int64_t chunk = 0; chunk < grid_.chunks(); chunk++) {
                const float* const some = sums(which, chunk, slice.channel);
                for (int64_t i = 0; i < slice.count; i++) totals[i] += some[i];
            }
        }
    }

    void add_ranks() { spec_.ranks->sum(totals_.data(), int64_t(totals_.size())); }

    int64_t ranks() const { return synchronised_ ? spec_.ranks->count : 1; }

    // Replaces the totals by means and variances.
    void gather_statistics(const ChannelSlice& slice) {
        const double count = double(grid_.per_channel());
        add_chunks(slice);
        for (int64_t c = slice.channel; c < slice.channel + slice.count; c++) {
            const double away = total(0, c) / count;
            total(0, c) = values(mean_)[c] + away;
            total(1, c) = total(1, c) / count - away * away;
        }
    }

    // Replaces this rank's means and variances by those over the batches of all ranks.
    void share_statistics() {
        for (int64_t c = 0; c < grid_.channels(); c++) total(1, c) += total(0, c) * total(0, c);
        add_ranks();
        for (double& each : totals_) each /= double(ranks());
        for (int64_t c = 0; c < grid_.channels(); c++) total(1, c) -= total(0, c) * total(0, c);
    }

    // If an x is infinite, the variance is NaN, which std::max keeps, being its first argument. Were it 0, finite x
    // would become minus infinity, which a ReLU hides as 0.
    void set_statistics(const ChannelSlice& slice) {
        for (int64_t c = slice.channel; c < slice.channel + slice.count; c++)
            set_channel(c, float(total(0, c)), float(std::max(total(1, c), 0.0)));
    }

    // Tells whether the parameters are sums that decay at every step, with the factor to divide them by; else they are
    // averages.
    bool sums_up() const { return statistics_ == 3; }

    void load_statistics(const ChannelSlice& slice) {
        const float count = sums_up() ? values(param(2))[0] : 1;
        const float scale = count == 0 ? 0 : 1 / count;
        for (int64_t c = slice.channel; c < slice.channel + slice.count; c++)
            set_channel(c, scale * values(param(0))[c], scale * values(param(1))[c]);
    }

    void set_channel(int64_t c, float mean, float variance) {
        values(mean_)[c] = mean;
        values(variance_)[c] = variance;
        values(factor_)[c] = (scale_ >= 0 ? values(param(scale_))[c] : 1) / std::sqrt(variance + eps_);
        values(offset_)[c] = shift_ >= 0 ? values(param(shift_))[c] : 0;
    }

    void update_statistics() {
        const int64_t count = grid_.per_channel() * ranks();
        const float unbiased = sums_up() && count > 1 ? float(count) / float(count - 1) : 1;
        const float share = sums_up() ? 1 : 1 - fraction_;  // of this batch
        float *const mean = values(param(0)), *const variance = values(param(1));
        if (sums_up()) values(param(2))[0] = values(param(2))[0] * fraction_ + 1;
        for (int64_t c = 0; c < grid_.channels(); c++) {
            mean[c] = mean[c] * fraction_ + share * values(mean_)[c];
            variance[c] = variance[c] * fraction_ + share * unbiased * values(variance_)[c];
        }
    }

    // With x^ = (x - mean) / sqrt(variance + eps), N values of a channel, and g the gradient after the normalisation:
    //   dx = scale / sqrt(variance + eps) (g - sum(g) / N - x^ sum(g x^) / N)
    // The second and third term are missing if statistics are constants, and not of the batch.
    template <typename T>
    void backward_of() {
        const NormKernels<T>& kernels = norm_kernels<T>();
        Gradient<T> job{};
        job.x = address<T>(input(0));
        job.given = address<T>(given_[0]);
        job.other = given_.size() == 2 ? address<T>(given_[1]) : nullptr;
        job.y = relu_ && adds() ? address<T>(outputs_[0]) : nullptr;
        job.kept = kept_ ? address<T>(kept_) : nullptr;
        job.ceiling = ceiling_;
        run_grid([&](int64_t chunk, int64_t first, int64_t last) { sum_gradient(kernels, job, chunk, first, last); },
                 [&](const ChannelSlice& slice) { gather_gradients(slice); }, [&] { add_ranks(); },
                 [&](const ChannelSlice& slice) { set_means(slice); },
                 [&](int64_t chunk, int64_t first, int64_t last) {
                     if (input_gradient(0)) write_gradient(kernels, job, chunk, first, last);
                 });
        if (job.kept) clear_padding(rows_, sizeof(T), job.kept);
        if (input_gradient(0) && input(0)->layout == layout_)  // else its blocks are a larger blob's
            clear_padding(rows_, sizeof(T), address<T>(input(0)->diff));
    }

    // Returns the job, moved to where a panel begins. It tells from x whether a ReLU was open, unless something was
    // added: then from y.
    template <typename T>
    Gradient<T> moved(Gradient<T> job, int64_t begin, int64_t x_begin, const float* mean, const float* factor,
                      const float* offset) const {
        job.x += x_begin;
        for (const T** each : {&job.given, &job.other, &job.y})
            if (*each) *each += begin;
        if (job.kept) job.kept += begin;
        job.mean = mean;
        if (relu_ && !job.y) {
            job.scale = factor;
            job.shift = offset;
        }
        return job;
    }

    template <typename T>
    void sum_gradient(const NormKernels<T>& kernels, const Gradient<T>& job, int64_t chunk, int64_t first,
                      int64_t last) const {
        sum_chunk(chunk, first, last,
                  [&](const ChannelSlice& slice, const Panel& panel, int64_t begin, int64_t x_begin, float* of_g,
                      float* of_gx) {
                      const Coefficients mean(slice, of(mean_, slice)), factor(slice, of(factor_, slice)),
                          offset(slice, of(offset_, slice));
                      kernels.sum_gradient(panel, moved(job, begin, x_begin, mean, factor, offset), of_g, of_gx);
                  });
    }

    double spread(int64_t c) const { return 1 / std::sqrt(double(values(variance_)[c]) + eps_); }

    // Writes the gradients of scale and shift. They are those of this rank's batch, averaged over the ranks like all
    // others.
    void gather_gradients(const ChannelSlice& slice) {
        add_chunks(slice);
        for (int64_t c = slice.channel; c < slice.channel + slice.count; c++) {
            if (scale_ >= 0) add_gradient(scale_, c, float(total(1, c) * spread(c)));
            if (shift_ >= 0) add_gradient(shift_, c, float(total(0, c)));
        }
    }

    // Replaces the sums of the first chunk by the coefficients of x - mean and of 1 in dx.
    void set_means(const ChannelSlice& slice) {
        const double count = double(grid_.per_channel() * ranks());
        for (int64_t c = slice.channel; c < slice.channel + slice.count; c++) {
            const double factor = global_ ? 0 : values(factor_)[c];
            *sums(0, 0, c) = float(-factor * spread(c) * spread(c) * total(1, c) / count);
            *sums(1, 0, c) = float(-factor * total(0, c) / count);
        }
    }

    void add_gradient(int i, int64_t c, float value) {
        if (!param_gradient(i)) return;
        const TensorPtr& diff = param(i)->diff;
        values(diff)[c] = value + (diff->accumulate ? values(diff)[c] : 0);
    }

    template <typename T>
    void write_gradient(const NormKernels<T>& kernels, Gradient<T> job, int64_t chunk, int64_t first,
                        int64_t last) const {
        T* const wanted = address<T>(input(0)->diff);
        const bool in_place = wanted == job.given || wanted == job.other || wanted == job.kept;
        const bool past_caches = !in_place && goes_past_caches(wanted), masked = job.kept;
        if (masked) job.given = job.kept;
        grid_.panels(chunk, first, last,
                     [&](const ChannelSlice& slice, const Panel& panel, int64_t begin, int64_t x_begin) {
                         const Coefficients mean(slice, of(mean_, slice)), factor(slice, of(factor_, slice)),
                             offset(slice, of(offset_, slice)), of_x(slice, sums(0, 0, slice.channel)),
                             constant(slice, sums(1, 0, slice.channel));
                         Gradient<T> piece = moved(job, begin, x_begin, mean, factor, offset);
                         if (masked) piece.scale = piece.shift = nullptr;
                         kernels.write_gradient(panel, piece, factor, of_x, constant, past_caches, wanted + begin);
                     });
    }

    Layout layout_;     // of all blobs but x
    ChannelRows rows_;  // of these blobs
    NormGrid grid_;
    float eps_, fraction_;
    bool global_, synchronised_, relu_;
    float ceiling_ = NAN;  // of the ReLU; NaN: none
    int statistics_;       // how many parameters hold statistics
    int scale_, shift_;    // the numbers of these parameters, or -1
    TensorPtr mean_, variance_, factor_, offset_;
    memory sums_, added_, kept_;
    std::vector<double> totals_;    // (2, channels), over all chunks
    std::vector<TensorPtr> given_;  // the gradients of y that there are, one or two
};

static const RegisterOp<BatchNorm> registered("BatchNorm");

}  // namespace
}  // namespace engine
