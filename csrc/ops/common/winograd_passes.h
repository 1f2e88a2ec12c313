// The passes of a convolution of 3 x 3 or 5 x 5 pixels with stride 1 by Winograd's algorithm (kernels/winograd.h), for
// groups of whole blocks of channels. Blobs are float32 or bf16, sums float32. The attributes are those of Convolution.
//
// Transforms turn tiles and weights into matrices, one at each point of a tile. Forward computes y = x w at each point,
// backward the gradients w = x' y and x = y w'. Tiles are done in chunks, so that their points stay in the caches
// between transform and product.
#pragma once

#include <omp.h>

#include <algorithm>
#include <vector>

#include "kernels/winograd.h"
#include "ops/common/parts.h"
#include "ops/common/weighted.h"

namespace engine {

class WinogradPasses : public Weighted {
public:
    void parameters_changed() override {
        Weighted::parameters_changed();
        transformed_ = never;
    }

protected:
    explicit WinogradPasses(OpSpec spec) : Weighted(std::move(spec)) {
        const Dims pads = spec_.attributes.integers("pad"), kernel = spec_.attributes.integers("kernel");
        if (pads.empty()) return;
        pad_ = pads[0];
        kernel_ = kernel[0];
    }

    // Tells whether this processor and this convolution can use these passes.
    bool winograd_fits() const {
        const auto& attributes = spec_.attributes;
        const Dims &in = input(0)->shape, &out = spec_.output_shapes[0], ones{1, 1}, pad = attributes.integers("pad");
        const int64_t group = attributes.integer("group", 1);
        return lanes() && in.size() == 4 && attributes.integers("kernel") == Dims{kernel_, kernel_} &&
               winograd_kernels<float>(kernel_) && attributes.integers("stride") == ones &&
               attributes.integers("dilation") == ones && pad[0] == pad[1] && pad[0] < kernel_ &&
               in[1] / group % lanes() == 0 && out[1] / group % lanes() == 0;
    }

    // Return the layouts of our own kernels, in blocks of channels: of images, and of float32 weights.
    Layout blocked(const Dims& dims) const {
        const auto tag = lanes() == 16 ? memory::format_tag::nChw16c : memory::format_tag::nChw8c;
        return Layout(dims, input(0)->layout.get_data_type(), tag);
    }
    Layout blocked_weights() const {
        const auto type = memory::data_type::f32;
        const Dims kernel = spec_.attributes.integers("kernel");
        const Dims dims{groups(), y_channels(), x_channels(), kernel[0], kernel[1]};
        using tag = memory::format_tag;
        if (groups() > 1) return Layout(dims, type, lanes() == 16 ? tag::gOIhw16i16o : tag::gOIhw8i8o);
        return Layout({dims.begin() + 1, dims.end()}, type, lanes() == 16 ? tag::OIhw16i16o : tag::OIhw8i8o);
    }

    void add_winograd_forward() {
        implementation_ = lanes() == 16 ? "winograd:avx512_core" : "winograd:avx2";
        const Dims& out = spec_.output_shapes[0];
        output(0, blocked(out));
        const memory x = reading(input(0), blocked(input(0)->shape), forward_calls_);
        const memory weights =
            constant_ ? constant_weights(blocked_weights()) : reading_param(0, blocked_weights(), forward_calls_);
        if (norm_)
            kept_bias_ = memory(plain_layout({out[1]}), cpu());
        else if (bias_)
            plain_param(1);
        touch(Pass::forward, {input(0), outputs_[0]});
        memory added;
        if (adds_) {
            added = reading(input(1), blocked(out), forward_calls_);
            touch(Pass::forward, input(1));
            const bool is_source = input(1)->buffer->root() == input(0)->buffer->root();  // read by later tiles
            if (!is_source) may_overwrite(Pass::forward, input(1), outputs_[0]);
        }
        const Room room = make_room(constant_);
        std::vector<Calls> products;
        for (const auto& w : room.w)
            products.push_back({product(room.x.at, room.x.layout(), w.at, w.layout(), room.y.at)});
        with_type([&](auto number) {
            using T = decltype(number);
            const auto& transform = *winograd_kernels<T>(kernel_);
            add_own(forward_calls_, [=] {
                if (!constant_ || transformed_ != writes()) transform_weights(room, weights, false);
                transformed_ = writes();
                const float* const bias = kept_bias_ ? address<float>(kept_bias_) : bias_ ? param(1)->data() : nullptr;
                const Dims &in = input(0)->shape, &seen = spec_.output_shapes[0];
                for_chunks(seen, room, [&](int64_t group, const Tiles& tiles) {
                    transform.input(images(in, group, x_channels()), address<T>(x), pad_, tiles, room.x.values());
                    run(products[size_t(group)], stream_);
                    transform.output(images(seen, group, y_channels()), room.y.values(), tiles, bias,
                                     added ? address<T>(added) : nullptr, activation_ && activation_->is_relu(),
                                     address<T>(outputs_[0]->memory));
                });
            });
        });
        if (activation_ && !activation_->is_relu()) activate();
    }

    // Makes backward compute the gradients of weights and bias. To be called after close_activation().
    void add_winograd_weights() {
        fresh_scratch();
        const Room room = make_room(false);
        std::vector<Calls> products[2];  // by group; the second adds to what is there
        for (const bool add : {false, true})
            for (const auto& w : room.w)
                products[add].push_back(
                    {product(room.x.at, room.x.transposed(), room.y.at, room.y.layout(), w.at, add)});
        const Dims& out = spec_.output_shapes[0];
        const Target weights = writing_gradient(0, blocked_weights());
        const Target bias = bias_ ? writing_gradient(1, plain_layout({out[1]})) : Target{};
        const memory x = reading(input(0), blocked(input(0)->shape), backward_calls_);
        const memory dy = reading(gradient(), blocked(out), backward_calls_);
        with_type([&](auto number) {
            using T = decltype(number);
            const auto& transform = *winograd_kernels<T>(kernel_);
            add_own(backward_calls_, [=, first = products[0], next = products[1]] {
                const Dims &in = input(0)->shape, &seen = spec_.output_shapes[0];
                for_chunks(seen, room, [&](int64_t group, const Tiles& tiles) {
                    transform.input(images(in, group, x_channels()), address<T>(x), pad_, tiles, room.x.values());
                    transform.output_gradient(images(seen, group, y_channels()), address<T>(dy), tiles,
                                              room.y.values());
                    clear_behind(room, tiles.count);
                    run((tiles.first > 0 ? next : first)[size_t(group)], stream_);
                });
                const int64_t size = y_channels() * x_channels() * kernel_ * kernel_;
                for (int64_t group = 0; group < groups(); group++)
                    transform.weights_gradient(room.w[size_t(group)].values(), y_channels(), x_channels(),
                                               address<float>(weights.memory) + group * size);
                if (bias_)
                    transform.bias_gradient(images(seen, 0, seen[1]), seen[0], address<T>(dy),
                                            address<float>(bias.memory));
            });
        });
        finish(weights, backward_calls_);
        finish(bias, backward_calls_);
        touch(Pass::backward, {input(0), gradient()});
    }

    // Makes backward compute the gradient of x. To be called after close_activation().
    void add_winograd_data() {
        fresh_scratch();
        const Room room = make_room(false);
        std::vector<Calls> products;
        for (const auto& w : room.w)
            products.push_back({product(room.y.at, room.y.layout(), w.at, w.transposed(), room.x.at)});
        const memory weights = reading_param(0, blocked_weights(), backward_calls_);
        const memory dy = reading(gradient(), blocked(spec_.output_shapes[0]), backward_calls_);
        const Target dx = writing(input(0)->diff, blocked(input(0)->shape));
        with_type([&](auto number) {
            using T = decltype(number);
            const auto& transform = *winograd_kernels<T>(kernel_);
            add_own(backward_calls_, [=] {
                const Dims &in = input(0)->shape, &out = spec_.output_shapes[0];
                transform_weights(room, weights, true);
                for_chunks(in, room, [&](int64_t group, const Tiles& tiles) {
                    transform.input(images(out, group, y_channels()), address<T>(dy), kernel_ - 1 - pad_, tiles,
                                    room.y.values());
                    run(products[size_t(group)], stream_);
                    transform.output(images(in, group, x_channels()), room.x.values(), tiles, nullptr, nullptr, false,
                                     address<T>(dx.memory));
                });
            });
        });
        finish(dx, backward_calls_);
        touch(Pass::backward, {gradient(), input(0)->diff});
    }

private:
    // A matrix at each point. They lie a cache line further apart than they need to: at powers of two they would
    // compete for the same places in the caches.
    struct Matrices {
        Matrices() = default;
        Matrices(int64_t p, int64_t r, int64_t c) : points(p), rows(r), columns(c), stride(r * c + 16) {}
        Layout layout() const {
            return Layout({points, rows, columns}, memory::data_type::f32, Dims{stride, columns, 1});
        }
        Layout transposed() const {
            return Layout({points, columns, rows}, memory::data_type::f32, Dims{stride, 1, columns});
        }
        Points values() const { return {address<float>(at), stride}; }

        int64_t points = 0, rows = 0, columns = 0, stride = 0;
        memory at;
    };

    // What a pass works in: x and y of a chunk of tiles, and the weights of each group.
    struct Room {
        int64_t chunk;
        Matrices x, y;
        std::vector<Matrices> w;
    };

    int64_t groups() const { return spec_.attributes.integer("group", 1); }
    int64_t x_channels() const { return input(0)->shape[1] / groups(); }
    int64_t y_channels() const { return spec_.output_shapes[0][1] / groups(); }

    // Returns the channels of a block; 0 if there are no kernels for this processor.
    int64_t lanes() const { return winograd_lanes(input(0)->is_bf16()); }

    int64_t points() const { return winograd_seen(kernel_) * winograd_seen(kernel_); }

    static int64_t tiles_along(int64_t size) { return (size + winograd_tile - 1) / winograd_tile; }
    BlockedImages images(const Dims& dims, int64_t group, int64_t channels) const {
        return {dims[1] / lanes(), dims[2], dims[3], group * channels / lanes(), channels / lanes()};
    }

    // Calls `add` with a number of the type of the blobs.
    template <typename Add>
    void with_type(const Add& add) const {
        input(0)->is_bf16() ? add(bf16{}) : add(float{});
    }

    // Makes the room of a pass. A chunk fills about half of the second-level caches, or more if it would have so few
    // tiles that weights were read too often. keeps_weights: whether these have memory of their own, and not scratch.
    Room make_room(bool keeps_weights) {
        constexpr int64_t cache = 1 << 20, fewest = 256;
        const int64_t bytes = points() * (x_channels() + y_channels()) * int64_t(sizeof(float));
        const int64_t most = std::max(fewest, omp_get_max_threads() * cache / bytes);
        const Dims &in = input(0)->shape, &out = spec_.output_shapes[0];
        const int64_t tiles = in[0] * tiles_along(std::max(in[2], out[2])) * tiles_along(std::max(in[3], out[3]));
        const int64_t chunks = (tiles + most - 1) / most, chunk = (tiles + chunks - 1) / chunks;
        Room room{chunk, {points(), chunk, x_channels()}, {points(), chunk, y_channels()}, {}};
        room.x.at = scratch(room.x.layout());
        room.y.at = scratch(room.y.layout());
        room.w.assign(size_t(groups()), Matrices(points(), x_channels(), y_channels()));
        for (auto& each : room.w) each.at = keeps_weights ? memory(each.layout(), cpu()) : scratch(each.layout());
        return room;
    }

    // Returns the call for c = a b, or with `add` c += a b, of a group's matrices at all points.
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

    // Applies an activation that is no ReLU to the results; a ReLU is part of their transform.
    void activate() {
        const Layout& layout = outputs_[0]->layout;
        const dnnl::eltwise_forward::primitive_desc pd(cpu(), forward_kind(spec_), activation_->forward, layout, layout,
                                                       activation_->alpha, activation_->beta, user_scratchpad());
        fresh_scratch();
        forward_calls_.push_back({dnnl::eltwise_forward(pd),
                                  {{DNNL_ARG_SRC, outputs_[0]->memory},
                                   {DNNL_ARG_DST, outputs_[0]->memory},
                                   {DNNL_ARG_SCRATCHPAD, scratch(pd.scratchpad_desc())}}});
    }

    void transform_weights(const Room& room, const memory& weights, bool turned) const {
        const int64_t size = y_channels() * x_channels() * kernel_ * kernel_;
        for (int64_t group = 0; group < groups(); group++)
            winograd_kernels<float>(kernel_)->weights(address<float>(weights) + group * size, y_channels(),
                                                      x_channels(), turned, room.w[size_t(group)].values());
    }

    // Calls each(group, tiles) for all chunks of tiles that cover a batch's planes.
    template <typename Each>
    void for_chunks(const Dims& plane, const Room& room, const Each& each) const {
        const int64_t rows = tiles_along(plane[2]), columns = tiles_along(plane[3]), all = plane[0] * rows * columns;
        for (int64_t group = 0; group < groups(); group++)
            for (int64_t first = 0; first < all; first += room.chunk)
                each(group, Tiles{rows, columns, first, std::min(room.chunk, all - first)});
    }

    // Sets the rows behind `count` tiles, which the last chunk may not fill, to 0, so that they add nothing.
    static void clear_behind(const Room& room, int64_t count) {
        for (const Matrices* each : {&room.x, &room.y})
            for (int64_t point = 0; point < each->points; point++)
                std::fill_n(address<float>(each->at) + point * each->stride + count * each->columns,
                            (room.chunk - count) * each->columns, 0.f);
    }

    int64_t pad_ = 0, kernel_ = 0;  // along either axis
    dnnl::stream stream_{cpu()};
    uint64_t transformed_ = never;  // writes() when constant weights were transformed
};

}  // namespace engine
