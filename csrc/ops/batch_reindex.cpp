// Rows of a blob in another order, some of them several times or not at all.
// inputs: x (N, ...) and row numbers (M), both row-major; outputs: (M, ...).
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
