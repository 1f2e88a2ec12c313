// Resizes planes: a pixel of the top is a weighted sum of the pixels around its place in the bottom, by weights that do
// not depend on the values.
// inputs: x (N, C, H, W), float32 or bf16, any layout with rows of channels; outputs: (N, C, h, w), laid out as x;
// attributes: wide (optional: the top is float32); for rows, row_first (for each row of the top, the first row of the
// bottom that counts), row_taps (how many rows count) and row_weights (that many for each row of the top; 0 beyond the
// plane); for columns, column_first, column_taps, column_weights.
#include <omp.h>

#include <algorithm>

#include "kernels/sixteen.h"
#include "ops/common/channel_layout.h"
#include "ops/common/parts.h"
#include "threads.h"

namespace engine {
namespace {

struct Term {
    int32_t from;
    float weight;
};

// The weighted sums along one axis: every place is the sum of its terms.
struct Mix {
    std::vector<int64_t> ends;  // of the terms of each place, and 0 before the first
    std::vector<Term> terms;

    int64_t size() const { return int64_t(ends.size()) - 1; }
    const Term* begin(int64_t place) const { return terms.data() + ends[place]; }
    const Term* end(int64_t place) const { return terms.data() + ends[place + 1]; }
};

Mix mix_of(const Attributes& attributes, const std::string& name) {
    const Dims first = attributes.integers(name + "_first");
    const std::vector<double> weights = attributes.reals(name + "_weights");
    const int64_t taps = attributes.integer(name + "_taps");
    Mix mix{{0}, {}};
    for (size_t place = 0; place < first.size(); place++) {
        for (int64_t tap = 0; tap < taps; tap++) {
            const auto weight = float(weights[place * taps + tap]);
            if (weight != 0) mix.terms.push_back({int32_t(first[place] + tap), weight});
        }
        mix.ends.push_back(int64_t(mix.terms.size()));
    }
    return mix;
}

// Returns the sums of the other direction, for gradients: of each of the `size` places that are read.
Mix transposed(const Mix& mix, int64_t size) {
    std::vector<std::vector<Term>> terms(size);
    for (int64_t place = 0; place < mix.size(); place++)
        for (const Term* term = mix.begin(place); term != mix.end(place); term++)
            terms[term->from].push_back({int32_t(place), term->weight});
    Mix other{{0}, {}};
    for (const auto& each : terms) {
        other.terms.insert(other.terms.end(), each.begin(), each.end());
        other.ends.push_back(int64_t(other.terms.size()));
    }
    return other;
}

// Sets `line` to the weighted sum of rows, `row_step` apart, of `pixels` pixels of `lanes` numbers, `step` apart. Rows
// are read one after the other, as memory is fastest.
template <typename From>
ENGINE_VECTORISED void add_rows(const From* rows, int64_t row_step, const Term* begin, const Term* end, int64_t pixels,
                                int64_t lanes, int64_t step, float* line) {
    if (begin == end) std::fill_n(line, pixels * lanes, 0.f);
    const int64_t runs = step == lanes ? 1 : pixels, length = pixels * lanes / runs;
    for (const Term* term = begin; term != end; term++)
        for (int64_t run = 0; run < runs; run++) {
            const From* const x = rows + term->from * row_step + run * step;
            float* const sums = line + run * length;
            const float weight = term->weight;
            if (term == begin)
#pragma omp simd
                for (int64_t i = 0; i < length; i++) sums[i] = weight * number(x[i]);
            else
#pragma omp simd
                for (int64_t i = 0; i < length; i++) sums[i] += weight * number(x[i]);
        }
}

// Writes pixels, `step` apart, as weighted sums of the pixels of a line, which has no gaps.
template <typename To>
void add_columns(const float* line, const Mix& mix, int64_t lanes, int64_t step, To* to) {
    const int64_t* const ends = mix.ends.data();
    const Term* const terms = mix.terms.data();
    const int64_t places = mix.size();
    if (lanes == 1) {
        for (int64_t place = 0; place < places; place++, to += step) {
            float sum = 0;
            for (int64_t i = ends[place]; i < ends[place + 1]; i++) sum += terms[i].weight * line[terms[i].from];
            store(sum, *to);
        }
        return;
    }
    in_sixteens(lanes, [=](auto piece, int64_t at) ENGINE_BODY {
        for (int64_t place = 0; place < places; place++) {
            typename decltype(piece)::Vector sum{}, values;
            for (int64_t i = ends[place]; i < ends[place + 1]; i++) {
                piece.read(line + terms[i].from * lanes + at, values);
                sum += terms[i].weight * values;
            }
            piece.write(sum, to + place * step + at);
        }
    });
}

class Resample : public Op {
public:
    explicit Resample(OpSpec spec) : Op(std::move(spec)) {
        const Dims &in = input(0)->shape, &out = spec_.output_shapes[0];
        const Mix rows = mix_of(spec_.attributes, "row"), columns = mix_of(spec_.attributes, "column");
        forward_ = {rows, columns, in[3]};
        backward_ = {transposed(rows, in[2]), transposed(columns, in[3]), out[3]};
        const bool wide = spec_.attributes.flag("wide");
        const auto type = wide ? memory::data_type::f32 : input(0)->layout.get_data_type();
        const Layout top = layout_like(input(0)->layout, out, type);
        const auto both = rows_of_both(input(0)->layout, top);
        x_ = both.bottom;
        y_ = both.top;
        output(0, top);
        line_size_ = std::min(x_.lanes, widest) * std::max(in[3], out[3]);
        lines_ = scratch(plain_layout({threads_, line_size_}));
        touch(Pass::forward, {input(0), outputs_[0]});
        if (input_gradient(0) && output_gradient(0)) touch(Pass::backward, {outputs_[0]->diff, input(0)->diff});
    }

    void forward(const dnnl::stream&) override { resize(forward_, input(0), x_, outputs_[0], y_); }

    void backward(const dnnl::stream&) override {
        if (!touched(Pass::backward).empty()) resize(backward_, outputs_[0]->diff, y_, input(0)->diff, x_);
    }

private:
    // The most lanes that are done at a time, so that a line stays in the cache.
    static constexpr int64_t widest = 64;

    struct Resize {
        Mix rows, columns;
        int64_t pixels;  // of a row that is read
    };

    void resize(const Resize& how, const TensorPtr& from, const ChannelRows& source, const TensorPtr& to,
                const ChannelRows& target) const {
        const auto into = [&](const auto* x) {
            if (to->is_bf16())
                resize(how, x, source, address<bf16>(to), target);
            else
                resize(how, x, source, to->data(), target);
        };
        from->is_bf16() ? into(address<bf16>(from)) : into(address<float>(from));
    }

    // Sums rows first, then columns.
    template <typename From, typename To>
    void resize(const Resize& how, const From* from, const ChannelRows& source, To* to,
                const ChannelRows& target) const {
        const int team = std::min(threads_, threads());
#pragma omp parallel for collapse(2) schedule(static) num_threads(team)
        for (int64_t panel = 0; panel < source.panels(); panel++)
            for (int64_t row = 0; row < how.rows.size(); row++) {
                float* const line = address<float>(lines_) + omp_get_thread_num() * line_size_;
                const int64_t n = panel / source.blocks(), block = panel % source.blocks();
                const From* const x = from + source.offset(n, block);
                To* const y = to + target.offset(n, block) + row * how.columns.size() * target.inner_stride;
                for (int64_t lane = 0; lane < source.lanes; lane += widest) {
                    const int64_t lanes = std::min(widest, source.lanes - lane);
                    add_rows(x + lane, how.pixels * source.inner_stride, how.rows.begin(row), how.rows.end(row),
                             how.pixels, lanes, source.inner_stride, line);
                    add_columns(line, how.columns, lanes, target.inner_stride, y + lane);
                }
            }
    }

    Resize forward_, backward_;
    ChannelRows x_{}, y_{};
    int64_t line_size_;
    memory lines_;  // scratch: a line for each of threads_
    int threads_ = threads();
};

static const RegisterOp<Resample> registered("Resample");

}  // namespace
}  // namespace engine
