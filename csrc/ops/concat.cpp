// Concatenates blobs along an axis.
// inputs: one or more, float32 or bf16, that agree in all other axes; outputs: one of their type; attributes: axis. If
// the top is the first slice of a larger blob, into which later Concats write what follows
// (graph/passes/chain_concats.py), also `sizes`, those along the axis of all bottoms that the larger blob holds, and
// `continues`, whether the first input lies there already.
#include <algorithm>

#include "kernels/row_pieces.h"
#include "ops/common/copy_op.h"

namespace engine {
namespace {

class Concat : public CopyOp {
public:
    explicit Concat(OpSpec spec) : CopyOp(std::move(spec)) {
        if (spec_.inputs.size() == 1) {
            output_view(0, input(0)->layout, input(0), true);
            touch(Pass::forward, input(0));
            if (input_gradient(0)) touch(Pass::backward, input(0)->diff);
            return;
        }
        axis_ = spec_.attributes.integer("axis");
        const bool continues = spec_.attributes.flag("continues");
        if (continues)
            output_view(0, first_slice_of(like_first()), input(0), true);
        else
            make_top(best_layout());
        touch(Pass::forward, outputs_[0]);
        if (continues && outputs_[0]->diff) touch(Pass::backward, outputs_[0]->diff);
        int64_t offset = 0;
        for (size_t i = 0; i < spec_.inputs.size(); i++) {
            const TensorPtr& bottom = input(i);
            if (i > 0 || !continues) place(bottom, offset);
            offset += bottom->layout.get_dims()[axis_];
        }
    }

    void forward(const dnnl::stream& stream) override {
        size_t count = 0;
        for (const Moved& each : moved_) copies_[count++] = each.copy(each.bottom->memory, outputs_[0]->memory, true);
        if (count) copy_rows(copies_, rows_);
        run(forward_calls_, stream);
    }

    void backward(const dnnl::stream& stream) override {
        size_t count = 0;
        for (const Moved& each : moved_)
            if (sends_gradient(each.bottom))
                gradients_[count++] = each.copy(each.bottom->diff->memory, outputs_[0]->diff->memory, false);
        if (count) copy_rows(gradients_, rows_);
        run(backward_calls_, stream);
    }

private:
    // A bottom that is copied row by row; sizes are in bytes.
    struct Moved {
        TensorPtr bottom;
        int64_t offset, pitch, length, whole_pitch;

        RowCopy copy(const memory& mine, const memory& whole, bool forward) const {
            char *const here = address<char>(mine), *const there = address<char>(whole) + offset;
            if (forward) return {{here, pitch}, {there, whole_pitch}, length};
            return {{there, whole_pitch}, {here, pitch}, length};
        }
    };

    bool sends_gradient(const TensorPtr& bottom) const { return bottom->diff && output_gradient(0); }

    void place(const TensorPtr& bottom, int64_t offset) {
        const Dims dims = bottom->layout.get_dims();
        touch(Pass::forward, bottom);
        if (sends_gradient(bottom)) touch(Pass::backward, {outputs_[0]->diff, bottom->diff});
        if (moves_rows(bottom, offset)) return;
        copy(bottom->memory, slice(outputs_[0], axis_, offset, dims), forward_calls_);
        if (sends_gradient(bottom))
            copy(slice(outputs_[0]->diff, axis_, offset, dims), bottom->diff->memory, backward_calls_);
    }

    // Tells whether the bottom is laid out as the top, so that rows need only be copied, and if so, sets that up.
    bool moves_rows(const TensorPtr& bottom, int64_t offset) {
        const Layout &mine = bottom->layout, &whole = outputs_[0]->layout;
        if (layout_like(whole, mine.get_dims(), whole.get_data_type()) != mine) return false;
        if (bottom->diff && bottom->diff->layout != mine) return false;
        const auto rows = rows_along(mine, axis_), into = rows_along(whole, axis_);
        if (!rows || !into || rows->count != into->count || rows->unit != into->unit) return false;
        const int64_t bytes = int64_t(memory::data_type_size(mine.get_data_type()));
        const int64_t begin = offset / block(whole) * into->unit;
        moved_.push_back({bottom, begin * bytes, rows->pitch * bytes, rows->length * bytes, into->pitch * bytes});
        rows_ = rows->count;
        copies_.emplace_back();
        if (sends_gradient(bottom)) gradients_.emplace_back();
        return true;
    }

    // Returns the size of the layout's blocks along the axis.
    int64_t block(const Layout& layout) const {
        const Dims blocks = layout.get_inner_blks(), axes = layout.get_inner_idxs();
        int64_t size = 1;
        for (size_t i = 0; i < blocks.size(); i++)
            if (axes[i] == axis_) size *= blocks[i];
        return size;
    }

    // Returns the dims of the whole: the top, or the larger blob of which it is the first slice.
    Dims whole_dims() const {
        Dims dims = spec_.output_shapes[0];
        if (!spec_.attributes.has("sizes")) return dims;
        dims[axis_] = 0;
        for (const int64_t size : spec_.attributes.integers("sizes")) dims[axis_] += size;
        return dims;
    }

    // Returns the layout of the whole: like the largest input's, or row-major if bottoms would begin within a block.
    Layout best_layout() const {
        std::vector<Dims> bottoms;
        for (const auto& bottom : spec_.inputs) bottoms.push_back(bottom->layout.get_dims());
        const auto smaller = [](const TensorPtr& a, const TensorPtr& b) { return a->count() < b->count(); };
        const TensorPtr& largest = *std::max_element(spec_.inputs.begin(), spec_.inputs.end(), smaller);
        if (spec_.attributes.has("sizes")) {
            for (const int64_t size : spec_.attributes.integers("sizes")) {
                bottoms.push_back(bottoms[0]);
                bottoms.back()[axis_] = size;
            }
        }
        const Layout wanted = layout_like(largest->layout, whole_dims(), largest->layout.get_data_type());
        return divides(wanted, axis_, bottoms) ? wanted : plain_layout(wanted.get_dims(), wanted.get_data_type());
    }

    // Returns the layout of the whole in which the first input lies already.
    Layout like_first() const {
        const Layout &first = input(0)->layout, whole = layout_like(first, whole_dims(), first.get_data_type());
        if (whole.get_strides() != first.get_strides())
            throw std::logic_error("'" + spec_.name + "' cannot go on with a blob laid out as " + layout_name(first));
        return whole;
    }

    // Returns the layout of the top within the whole.
    Layout first_slice_of(const Layout& whole) const {
        const Dims& dims = spec_.output_shapes[0];
        return whole.get_dims() == dims ? whole : whole.submemory_desc(dims, Dims(dims.size(), 0));
    }

    void make_top(const Layout& whole) {
        if (whole.get_dims() == spec_.output_shapes[0]) {
            output(0, whole);
            return;
        }
        const auto room = [&] { return std::make_shared<Buffer>(whole.get_size(), Home::activation); };
        const auto top = std::make_shared<Tensor>(spec_.name, spec_.output_shapes[0], Home::activation);
        top->decide(first_slice_of(whole), room());
        if (output_gradient(0)) {
            top->diff = std::make_shared<Tensor>(spec_.name, top->shape, Home::activation);
            top->diff->decide(top->layout, room());
        }
        outputs_[0] = top;
    }

    int64_t axis_ = 1, rows_ = 0;
    std::vector<Moved> moved_;
    std::vector<RowCopy> copies_, gradients_;  // set in every pass, because memory is placed late
};

static const RegisterOp<Concat> registered("Concat");

}  // namespace
}  // namespace engine
