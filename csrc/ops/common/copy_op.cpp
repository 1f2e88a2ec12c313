#include "ops/common/copy_op.h"

#include <algorithm>

namespace engine {

bool CopyOp::divides(const Layout& whole, int64_t axis, const std::vector<Dims>& slices) {
    const Dims blocks = whole.get_inner_blks(), axes = whole.get_inner_idxs();
    int64_t block = 1;
    for (size_t i = 0; i < blocks.size(); i++)
        if (axes[i] == axis) block *= blocks[i];
    return std::all_of(slices.begin(), slices.end() - 1, [&](const Dims& dims) { return dims[axis] % block == 0; });
}

memory CopyOp::slice(const TensorPtr& whole, int64_t axis, int64_t offset, const Dims& dims) {
    Dims offsets(dims.size(), 0);
    offsets[axis] = offset;
    return whole->as(whole->layout.submemory_desc(dims, offsets));
}

void CopyOp::copy(const memory& from, const memory& to, Calls& calls) {
    const dnnl::reorder::primitive_desc pd(from, to, user_scratchpad());
    fresh_scratch();
    implementation_ = pd.impl_info_str();
    calls.push_back({dnnl::reorder(pd),
                     {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}, {DNNL_ARG_SCRATCHPAD, scratch(pd.scratchpad_desc())}}});
}

}  // namespace engine
