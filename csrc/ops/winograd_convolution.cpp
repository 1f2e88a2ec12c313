// Convolution of 3 x 3 pixels with stride 1 in float32 by Winograd's algorithm (winograd.h), for groups of whole blocks
// of 16 channels. inputs: x (N, C, H, W), and what is added; params and attributes: as Convolution's, of which pad and
// group are read.
//
// At each of 36 points y = x w, and for the gradients w = x' y and x = y w'. Tiles are done in chunks, so that their
// points stay in the caches between transform and product.
#include <omp.h>

#include <algorithm>

#include "kernels/winograd.h"
#include "ops/common/weighted.h"

namespace engine {
namespace {

class WinogradConvolution : public Weighted {
public:
    explicit WinogradConvolution(OpSpec spec) : Weighted(std::move(spec)) {
        const Dims &in = input(0)->shape, &out = spec_.output_shapes[0];
        groups_ = spec_.attributes.integer("group", 1);
        x_channels_ = in[1] / groups_;
        y_channels_ = out[1] / groups_;
        pad_ = spec_.attributes.integers("pad")[0];
        if (x_channels_ % 16 || y_channels_ % 16 || spec_.attributes.integers("pad")[1] != pad_)
            throw std::invalid_argument("winograd: expected groups of multiples of 16 channels, and one pad");
        implementation_ = "winograd:avx512_core";
        output(0, blocked(out));
        close_activation();
        if (activation_ && !activation_->is_relu()) activate();
        fresh_scratch();
        make_points();
        build_forward();
        if (weights_learn()) build_backward_weights();
        if (input_gradient(0)) build_backward_data();
    }

    void forward(const dnnl::stream& stream) override {
        const bool changed = !constant_ || writes() != seen_;
        if (constant_ && changed) make_constant(stream);
        run(forward_calls_, stream);
        if (changed) transform_weights(false);
        const float* const bias = kept_bias_ ? values(kept_bias_) : bias_ ? param(1)->data() : nullptr;
        const Dims &in = input(0)->shape, &out = spec_.output_shapes[0];
        for_chunks(out, [&](int64_t group, const Tiles& tiles) {
            winograd_input(images(in, group, x_channels_), values(x_), pad_, tiles, x_at_.points());
            run(y_products_[group], stream);
            winograd_output(images(out, group, y_channels_), y_at_.points(), tiles, bias,
                            adds_ ? values(added_) : nullptr, activation_ && activation_->is_relu(),
                            outputs_[0]->data());
        });
        run(activate_calls_, stream);
    }

    void backward(const dnnl::stream& stream) override {
        run(backward_calls_, stream);
        if (weights_learn()) backward_weights(stream);
        if (input_gradient(0)) backward_data(stream);
        run(finish_calls_, stream);
    }

private:
    // The transform of the results knows a ReLU; other functions are applied to them afterwards.
    void activate() {
        const Layout& layout = outputs_[0]->layout;
        const dnnl::eltwise_forward::primitive_desc pd(cpu(), forward_kind(spec_), activation_->forward, layout, layout,
                                                       activation_->alpha, activation_->beta, user_scratchpad());
        fresh_scratch();
        activate_calls_.push_back({dnnl::eltwise_forward(pd),
                                   {{DNNL_ARG_SRC, outputs_[0]->memory},
                                    {DNNL_ARG_DST, outputs_[0]->memory},
                                    {DNNL_ARG_SCRATCHPAD, scratch(pd.scratchpad_desc())}}});
    }

    static float* values(const memory& from) { return static_cast<float*>(from.get_data_handle()); }

    // At all points, a cache line further apart than they must be: at powers of two they would compete for the same
    // places in the caches.
    struct Matrices {
        Matrices() = default;
        Matrices(int64_t r, int64_t c) : rows(r), columns(c), stride(r * c + 16) {}
        Layout layout() const {
            return Layout({Points::count, rows, columns}, memory::data_type::f32, Dims{stride, columns, 1});
        }
        Layout transposed() const {
            return Layout({Points::count, columns, rows}, memory::data_type::f32, Dims{stride, 1, columns});
        }
        Points points() const { return {values(at), stride}; }

        int64_t rows = 0, columns = 0, stride = 0;
        memory at;
    };

    static Layout blocked(const Dims& dims) {
        return Layout(dims, memory::data_type::f32, memory::format_tag::nChw16c);
    }
    static int64_t tiles_along(int64_t size) { return (size + 3) / 4; }

    static BlockedImages images(const Dims& dims, int64_t group, int64_t channels) {
        return {dims[1] / 16, dims[2], dims[3], group * channels / 16, channels / 16};
    }

    Layout weights_layout() const {
        const Dims dims{groups_, y_channels_, x_channels_, 3, 3};
        if (groups_ > 1) return Layout(dims, memory::data_type::f32, memory::format_tag::gOIhw16i16o);
        return Layout({y_channels_, x_channels_, 3, 3}, memory::data_type::f32, memory::format_tag::OIhw16i16o);
    }

    // A chunk fills half of the second-level caches, but has rows enough for weights to be read seldom.
    void make_points() {
        constexpr int64_t cache = 1 << 20, fewest = 256;
        const int64_t bytes = Points::count * (x_channels_ + y_channels_) * int64_t(sizeof(float));
        const int64_t most = std::max(fewest, omp_get_max_threads() * cache / bytes);
        const Dims &in = input(0)->shape, &out = spec_.output_shapes[0];
        const int64_t tiles = in[0] * tiles_along(std::max(in[2], out[2])) * tiles_along(std::max(in[3], out[3]));
        const int64_t chunks = (tiles + most - 1) / most;
        chunk_ = (tiles + chunks - 1) / chunks;
        x_at_ = Matrices(chunk_, x_channels_);
        y_at_ = Matrices(chunk_, y_channels_);
        x_at_.at = scratch(x_at_.layout());
        y_at_.at = scratch(y_at_.layout());
        w_at_.assign(groups_, Matrices(x_channels_, y_channels_));
        for (auto& each : w_at_) each.at = constant_ ? memory(each.layout(), cpu()) : scratch(each.layout());
    }

    // c = a b, or c + a b, where the matrices are the group's.
    Call product(const memory& a, const Layout& a_seen, const memory& b, const Layout& b_seen, const memory& c,
                 bool add = false) {
        primitive_attr attr = user_scratchpad();
        if (add) {
            dnnl::post_ops post;
            post.append_sum(1.f);
            attr.set_post_ops(post);
        }
        const dnnl::matmul::primitive_desc pd(cpu(), a_seen, b_seen, c.get_desc(), attr);
        return {dnnl::matmul(pd),
                {{DNNL_ARG_SRC, a},
                 {DNNL_ARG_WEIGHTS, b},
                 {DNNL_ARG_DST, c},
                 {DNNL_ARG_SCRATCHPAD, scratch(pd.scratchpad_desc())}}};
    }

    void build_forward() {
        const Dims& out = spec_.output_shapes[0];
        x_ = reading(input(0), blocked(input(0)->shape), forward_calls_);
        weights_memory_ =
            constant_ ? constant_weights(weights_layout()) : reading_param(0, weights_layout(), forward_calls_);
        if (norm_)
            kept_bias_ = memory(plain_layout({out[1]}), cpu());
        else if (bias_)
            plain_param(1);
        touch(Pass::forward, {input(0), outputs_[0]});
        if (adds_) {
            added_ = reading(input(1), blocked(out), forward_calls_);
            touch(Pass::forward, input(1));
            const bool is_source = input(1)->buffer->root() == input(0)->buffer->root();  // read by later tiles
            if (!is_source) may_overwrite(Pass::forward, input(1), outputs_[0]);
        }
        for (const auto& w : w_at_)
            y_products_.push_back({product(x_at_.at, x_at_.layout(), w.at, w.layout(), y_at_.at)});
    }

    void build_backward_weights() {
        for (const bool add : {false, true})
            for (const auto& w : w_at_)
                w_products_[add].push_back(
                    {product(x_at_.at, x_at_.transposed(), y_at_.at, y_at_.layout(), w.at, add)});
        weights_gradient_ = writing_gradient(0, weights_layout());
        if (bias_) bias_gradient_ = writing_gradient(1, plain_layout({spec_.output_shapes[0][1]}));
        x_again_ = reading(input(0), blocked(input(0)->shape), backward_calls_);
        dy_ = reading(gradient(), blocked(spec_.output_shapes[0]), backward_calls_);
        finish(weights_gradient_, finish_calls_);
        finish(bias_gradient_, finish_calls_);
        touch(Pass::backward, {input(0), gradient()});
    }

    void build_backward_data() {
        for (const auto& w : w_at_)
            x_products_.push_back({product(y_at_.at, y_at_.layout(), w.at, w.transposed(), x_at_.at)});
        turned_weights_ = reading_param(0, weights_layout(), backward_calls_);
        if (!dy_) dy_ = reading(gradient(), blocked(spec_.output_shapes[0]), backward_calls_);
        dx_ = writing(input(0)->diff, blocked(input(0)->shape));
        finish(dx_, finish_calls_);
        touch(Pass::backward, {gradient(), input(0)->diff});
    }

    void make_constant(const dnnl::stream& stream) {
        seen_ = writes();
        if (kept_weights_) keep_parameters(stream);
    }

    void transform_weights(bool turned) {
        const int64_t size = y_channels_ * x_channels_ * 9;
        const float* const from = values(turned ? turned_weights_ : weights_memory_);
        for (int64_t group = 0; group < groups_; group++)
            winograd_weights(from + group * size, y_channels_, x_channels_, turned, w_at_[group].points());
    }

    // each(group, tiles) for all chunks of tiles that cover a plane.
    template <typename Each>
    void for_chunks(const Dims& plane, const Each& each) const {
        const int64_t rows = tiles_along(plane[2]), columns = tiles_along(plane[3]), all = plane[0] * rows * columns;
        for (int64_t group = 0; group < groups_; group++)
            for (int64_t first = 0; first < all; first += chunk_)
                each(group, {rows, columns, first, std::min(chunk_, all - first)});
    }

    void backward_weights(const dnnl::stream& stream) {
        const Dims &in = input(0)->shape, &out = spec_.output_shapes[0];
        for_chunks(out, [&](int64_t group, const Tiles& tiles) {
            winograd_input(images(in, group, x_channels_), values(x_again_), pad_, tiles, x_at_.points());
            winograd_output_gradient(images(out, group, y_channels_), values(dy_), tiles, y_at_.points());
            clear_behind(tiles.count);
            run(w_products_[tiles.first > 0][group], stream);
        });
        const int64_t size = y_channels_ * x_channels_ * 9;
        for (int64_t group = 0; group < groups_; group++)
            winograd_weights_gradient(w_at_[group].points(), y_channels_, x_channels_,
                                      values(weights_gradient_.memory) + group * size);
        if (bias_) winograd_bias_gradient(images(out, 0, out[1]), out[0], values(dy_), values(bias_gradient_.memory));
    }

    // The last chunk may be short: rows that no tile wrote add nothing.
    void clear_behind(int64_t count) const {
        for (const Matrices* each : {&x_at_, &y_at_})
            for (int64_t point = 0; point < Points::count; point++)
                std::fill_n(values(each->at) + point * each->stride + count * each->columns,
                            (chunk_ - count) * each->columns, 0.f);
    }

    void backward_data(const dnnl::stream& stream) {
        const Dims &in = input(0)->shape, &out = spec_.output_shapes[0];
        transform_weights(true);
        for_chunks(in, [&](int64_t group, const Tiles& tiles) {
            winograd_input(images(out, group, y_channels_), values(dy_), 2 - pad_, tiles, y_at_.points());
            run(x_products_[group], stream);
            winograd_output(images(in, group, x_channels_), x_at_.points(), tiles, nullptr, nullptr, false,
                            values(dx_.memory));
        });
    }

    int64_t groups_, x_channels_, y_channels_, pad_, chunk_;
    Matrices x_at_, y_at_;
    std::vector<Matrices> w_at_;  // by group
    memory x_, x_again_, dy_, weights_memory_, turned_weights_;
    std::vector<Calls> y_products_, x_products_, w_products_[2];  // by group; the second adds to what is there
    Target weights_gradient_, bias_gradient_, dx_;
    Calls activate_calls_, finish_calls_;
};

static const bool registered = has_winograd() && (RegisterOp<WinogradConvolution>("WinogradConvolution"), true);

}  // namespace
}  // namespace engine
