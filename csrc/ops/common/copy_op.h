// The base of Cast, Concat, Crop, Permute, Plain and Slice: copies between blobs and slices of blobs, float32 or bf16.
#pragma once

#include "ops/common/parts.h"

namespace engine {

class CopyOp : public Op {
protected:
    using Op::Op;

    // Tells whether `whole` can be cut along an axis into slices with these dims: not if a cut lies within a block.
    static bool divides(const Layout& whole, int64_t axis, const std::vector<Dims>& slices);
    // Returns the slice of `whole` that begins at `offset` along the axis and has these dims, in the memory of `whole`.
    static memory slice(const TensorPtr& whole, int64_t axis, int64_t offset, const Dims& dims);
    // Adds a copy to the calls.
    void copy(const memory& from, const memory& to, Calls& calls);
};

}  // namespace engine
