// Copies rows of a blob by number, in any order, some of them several times or not at all.
// inputs: x (N, ...), float32 or bf16, and row numbers (M), float32, row-major; outputs: (M, ...), as x.
#include "ops/common/row_index_op.h"

namespace engine {
namespace {

class BatchReindex : public RowIndexOp {
public:
    explicit BatchReindex(OpSpec spec) : RowIndexOp(std::move(spec)) {}

private:
    void choose(const float* values, int64_t count, std::vector<int64_t>& rows) const override {
        read_rows(spec_.name, values, count, rows);
    }
};

static const RegisterOp<BatchReindex> registered("BatchReindex");

}  // namespace
}  // namespace engine
