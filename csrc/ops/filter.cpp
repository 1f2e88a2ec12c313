// Copies the rows of a blob whose selector is not zero, in their order, and fills the rest with zeros.
// inputs: x (N, ...), float32 or bf16, and the selector (N), float32, row-major; outputs: as x.
#include <algorithm>

#include "ops/common/row_index_op.h"

namespace engine {
namespace {

class Filter : public RowIndexOp {
public:
    explicit Filter(OpSpec spec) : RowIndexOp(std::move(spec)) {}

private:
    void choose(const float* selector, int64_t count, std::vector<int64_t>& rows) const override {
        auto next = rows.begin();
        for (int64_t row = 0; row < count; row++)
            if (selector[row] != 0) *next++ = row;
        std::fill(next, rows.end(), -1);
    }
};

static const RegisterOp<Filter> registered("Filter");

}  // namespace
}  // namespace engine
