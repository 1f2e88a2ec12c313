// Times oneDNN's primitives alone: reads one kernel per line, prints its seconds. tools/bench/kernel_limit.py writes
// the lines from a net and builds this file.
//
//     kernel_limit fp32|bf16 REPEATS < lines
//
// Buffers are private and resident, layouts of convolutions and inner products are oneDNN's own choice; norms, pooling
// and LRN work in the layout of the convolution that they name (its line number; -1: plain). A kernel's time is the
// least of REPEATS runs after one that does not count; equal kernels are timed once.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>

using namespace dnnl;
using Dims = memory::dims;
using Desc = memory::desc;

namespace {

struct Times {
    double forward = 0, data = 0, weights = 0;  // seconds
    memory::format_tag layout = memory::format_tag::nchw;
    std::string implementation;
};

class Bench {
public:
    Bench(memory::data_type type, int repeats) : type_(type), repeats_(repeats) {}

    Times run(const std::string& kind, std::istringstream& line, memory::format_tag layout) {
        if (kind == "convolution") return convolution(line);
        if (kind == "inner_product") return inner_product(line);
        if (kind == "batch_norm") return batch_norm(line, layout);
        if (kind == "pooling") return pooling(line, layout);
        if (kind == "lrn") return lrn(line, layout);
        throw std::runtime_error("unknown kernel " + kind);
    }

private:
    using Args = std::vector<std::pair<int, Desc>>;

    Times convolution(std::istringstream& line) {
        const Dims x = dims(line, 4), y = dims(line, 4), w = dims(line, 2), stride = dims(line, 2), pad = dims(line, 2);
        const Dims dilation = dims(line, 2);
        const auto groups = dims(line, 1)[0];
        const bool with_data = dims(line, 1)[0];
        Dims spare(2), extra(2);  // padding behind; dilation as oneDNN counts it
        for (int i = 0; i < 2; i++) {
            extra[i] = dilation[i] - 1;
            spare[i] = (y[i + 2] - 1) * stride[i] + extra[i] * (w[i] - 1) + w[i] - x[i + 2] - pad[i];
        }
        const Dims weights =
            groups > 1 ? Dims{groups, y[1] / groups, x[1] / groups, w[0], w[1]} : Dims{y[1], x[1], w[0], w[1]};
        const Desc src = any(x), wei = any(weights), dst = any(y);
        const auto direct = algorithm::convolution_direct;
        convolution_forward::primitive_desc f(cpu_, prop_kind::forward_training, direct, src, wei, dst, stride, extra,
                                              pad, spare);
        Times t;
        t.layout = layout_of(f.dst_desc());
        t.implementation = f.impl_info_str();
        t.forward =
            time(convolution_forward(f),
                 {{DNNL_ARG_SRC, f.src_desc()}, {DNNL_ARG_WEIGHTS, f.weights_desc()}, {DNNL_ARG_DST, f.dst_desc()}});
        if (with_data) {
            convolution_backward_data::primitive_desc d(cpu_, direct, src, wei, dst, stride, extra, pad, spare, f);
            t.data = time(convolution_backward_data(d), {{DNNL_ARG_DIFF_SRC, d.diff_src_desc()},
                                                         {DNNL_ARG_WEIGHTS, d.weights_desc()},
                                                         {DNNL_ARG_DIFF_DST, d.diff_dst_desc()}});
        }
        convolution_backward_weights::primitive_desc b(cpu_, direct, src, wei, dst, stride, extra, pad, spare, f);
        t.weights = time(convolution_backward_weights(b), {{DNNL_ARG_SRC, b.src_desc()},
                                                           {DNNL_ARG_DIFF_WEIGHTS, b.diff_weights_desc()},
                                                           {DNNL_ARG_DIFF_DST, b.diff_dst_desc()}});
        return t;
    }

    Times inner_product(std::istringstream& line) {
        const Dims x = dims(line, 4);
        const auto outputs = dims(line, 1)[0];
        const bool with_data = dims(line, 1)[0];
        const Desc src = any(x), wei = any({outputs, x[1], x[2], x[3]}), dst = any({x[0], outputs});
        inner_product_forward::primitive_desc f(cpu_, prop_kind::forward_training, src, wei, dst);
        Times t;
        t.implementation = f.impl_info_str();
        t.forward =
            time(inner_product_forward(f),
                 {{DNNL_ARG_SRC, f.src_desc()}, {DNNL_ARG_WEIGHTS, f.weights_desc()}, {DNNL_ARG_DST, f.dst_desc()}});
        if (with_data) {
            inner_product_backward_data::primitive_desc d(cpu_, src, wei, dst, f);
            t.data = time(inner_product_backward_data(d), {{DNNL_ARG_DIFF_SRC, d.diff_src_desc()},
                                                           {DNNL_ARG_WEIGHTS, d.weights_desc()},
                                                           {DNNL_ARG_DIFF_DST, d.diff_dst_desc()}});
        }
        inner_product_backward_weights::primitive_desc b(cpu_, src, wei, dst, f);
        t.weights = time(inner_product_backward_weights(b), {{DNNL_ARG_SRC, b.src_desc()},
                                                             {DNNL_ARG_DIFF_WEIGHTS, b.diff_weights_desc()},
                                                             {DNNL_ARG_DIFF_DST, b.diff_dst_desc()}});
        return t;
    }

    Times batch_norm(std::istringstream& line, memory::format_tag layout) {
        const Desc x(dims(line, 4), type_, layout);
        const bool relu = dims(line, 1)[0];
        auto flags = normalization_flags::use_scale | normalization_flags::use_shift;
        if (relu) flags = flags | normalization_flags::fuse_norm_relu;
        batch_normalization_forward::primitive_desc f(cpu_, prop_kind::forward_training, x, x, 1e-5f, flags);
        batch_normalization_backward::primitive_desc b(cpu_, prop_kind::backward, x, x, x, 1e-5f, flags, f);
        Args forward{{DNNL_ARG_SRC, x},
                     {DNNL_ARG_DST, x},
                     {DNNL_ARG_MEAN, f.mean_desc()},
                     {DNNL_ARG_VARIANCE, f.variance_desc()},
                     {DNNL_ARG_SCALE, f.weights_desc()},
                     {DNNL_ARG_SHIFT, f.weights_desc()}};
        Args backward{{DNNL_ARG_SRC, x},
                      {DNNL_ARG_DIFF_DST, x},
                      {DNNL_ARG_DIFF_SRC, x},
                      {DNNL_ARG_MEAN, f.mean_desc()},
                      {DNNL_ARG_VARIANCE, f.variance_desc()},
                      {DNNL_ARG_SCALE, f.weights_desc()},
                      {DNNL_ARG_DIFF_SCALE, f.weights_desc()},
                      {DNNL_ARG_DIFF_SHIFT, f.weights_desc()}};
        if (relu) {
            forward.push_back({DNNL_ARG_WORKSPACE, f.workspace_desc()});
            backward.push_back({DNNL_ARG_WORKSPACE, f.workspace_desc()});
        }
        Times t;
        t.implementation = f.impl_info_str();
        t.forward = time(batch_normalization_forward(f), forward);
        t.data = time(batch_normalization_backward(b), backward);
        return t;
    }

    Times pooling(std::istringstream& line, memory::format_tag layout) {
        const Dims x = dims(line, 4), y = dims(line, 4), kernel = dims(line, 2), stride = dims(line, 2),
                   pad = dims(line, 2);
        const bool max = dims(line, 1)[0];
        Dims spare(2);
        for (int i = 0; i < 2; i++)
            spare[i] = std::max<long>(0, (y[i + 2] - 1) * stride[i] + kernel[i] - x[i + 2] - pad[i]);
        const auto method = max ? algorithm::pooling_max : algorithm::pooling_avg_exclude_padding;
        const Desc src(x, type_, layout), dst(y, type_, layout);
        pooling_forward::primitive_desc f(cpu_, prop_kind::forward_training, method, src, dst, stride, kernel, {0, 0},
                                          pad, spare);
        pooling_backward::primitive_desc b(cpu_, method, src, dst, stride, kernel, {0, 0}, pad, spare, f);
        Args forward{{DNNL_ARG_SRC, src}, {DNNL_ARG_DST, dst}},
            backward{{DNNL_ARG_DIFF_SRC, src}, {DNNL_ARG_DIFF_DST, dst}};
        return both(f, pooling_forward(f), forward, pooling_backward(b), backward);
    }

    Times lrn(std::istringstream& line, memory::format_tag layout) {
        const Desc x(dims(line, 4), type_, layout);
        const auto size = dims(line, 1)[0];
        float alpha = 0, beta = 0, k = 0;
        line >> alpha >> beta >> k;
        const auto across = algorithm::lrn_across_channels;
        lrn_forward::primitive_desc f(cpu_, prop_kind::forward_training, across, x, x, size, alpha, beta, k);
        lrn_backward::primitive_desc b(cpu_, across, x, x, x, size, alpha, beta, k, f);
        Args forward{{DNNL_ARG_SRC, x}, {DNNL_ARG_DST, x}};
        Args backward{{DNNL_ARG_SRC, x}, {DNNL_ARG_DIFF_DST, x}, {DNNL_ARG_DIFF_SRC, x}};
        return both(f, lrn_forward(f), forward, lrn_backward(b), backward);
    }

    // Forward and backward of what has no weights, and a workspace between them only for some implementations.
    template <class Pd>
    Times both(const Pd& pd, const primitive& f, Args forward, const primitive& b, Args backward) {
        if (pd.workspace_desc().get_size()) {
            forward.push_back({DNNL_ARG_WORKSPACE, pd.workspace_desc()});
            backward.push_back({DNNL_ARG_WORKSPACE, pd.workspace_desc()});
        }
        Times t;
        t.implementation = pd.impl_info_str();
        t.forward = time(f, forward);
        t.data = time(b, backward);
        return t;
    }

    Desc any(const Dims& dims) const { return {dims, type_, memory::format_tag::any}; }

    static Dims dims(std::istringstream& line, int count) {
        Dims values(count);
        for (auto& value : values)
            if (!(line >> value)) throw std::runtime_error("a kernel's line is too short");
        return values;
    }

    static memory::format_tag layout_of(const Desc& desc) {
        if (desc.get_inner_nblks())
            return desc.get_inner_blks()[0] == 16 ? memory::format_tag::nChw16c : memory::format_tag::nChw8c;
        return desc.get_strides()[1] == 1 ? memory::format_tag::nhwc : memory::format_tag::nchw;
    }

    double time(const primitive& p, const Args& args) {
        std::unordered_map<int, memory> memories;
        for (const auto& [arg, desc] : args) {
            memory m(desc, cpu_);
            std::memset(m.get_data_handle(), 0, desc.get_size());
            memories.emplace(arg, std::move(m));
        }
        double least = 1e9;
        for (int i = 0; i <= repeats_; i++) {
            const auto start = std::chrono::steady_clock::now();
            p.execute(stream_, memories);
            stream_.wait();
            const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
            if (i) least = std::min(least, seconds.count());
        }
        return least;
    }

    engine cpu_{engine::kind::cpu, 0};
    stream stream_{cpu_};
    memory::data_type type_;
    int repeats_;
};

void run(memory::data_type type, int repeats) {
    Bench bench(type, repeats);
    std::vector<memory::format_tag> layouts;  // of each line's result
    std::map<std::string, Times> known;
    for (std::string text; std::getline(std::cin, text);) {
        std::istringstream line(text);
        std::string kind, rest;
        int source = -1;
        line >> kind >> source;
        std::getline(line, rest);
        const auto layout = source < 0 ? memory::format_tag::nchw : layouts.at(source);
        const std::string key = kind + rest + " " + std::to_string(static_cast<int>(layout));
        auto found = known.find(key);
        if (found == known.end()) {
            std::istringstream parameters(rest);
            found = known.emplace(key, bench.run(kind, parameters, layout)).first;
        }
        const Times& t = found->second;
        layouts.push_back(kind == "convolution" ? t.layout : layout);
        std::cout << t.forward << ' ' << t.data << ' ' << t.weights << ' ' << t.implementation << std::endl;
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) {
        std::cerr << "usage: kernel_limit fp32|bf16 REPEATS < kernels\n";
        return 2;
    }
    try {
        const bool bf16 = !std::strcmp(argv[1], "bf16");
        run(bf16 ? memory::data_type::bf16 : memory::data_type::f32, std::atoi(argv[2]));
    } catch (const std::exception& error) {
        std::cerr << "kernel_limit: " << error.what() << '\n';
        return 1;
    }
}
