// Packs and sums gradients as they travel between ranks.
#include "bind.h"
#include "wire.h"

namespace engine {

// Raises ValueError unless rows is (row_count, stride) with `count` numbers or more in each row, and `own` one of them.
static void check_rows(const py::array& rows, int own, py::ssize_t count) {
    if (rows.ndim() != 2 || count > rows.shape(1) || own < 0 || own >= rows.shape(0))
        throw py::value_error("rows must be (row_count, stride), stride at least the size of the sum, own one of them");
}

template <void (*into)(const uint16_t*, float*, int64_t)>
static void unpack(const py::array& packed, const py::array& values) {
    const py::ssize_t count = values.size();
    const uint16_t* const from = array_pointer<uint16_t>(packed, count, "packed");
    float* const to = array_pointer<float>(values, count, "values");
    py::gil_scoped_release release;
    into(from, to, count);
}

template <typename Row, void (*sum)(const Row*, int64_t, int64_t, int64_t, float*, int64_t)>
static void sum_of_rows(const py::array& rows, int own, const py::array& values) {
    const py::ssize_t count = values.size();
    check_rows(rows, own, count);
    const Row* const from = array_pointer<Row>(rows, rows.size(), "rows");
    float* const mine = array_pointer<float>(values, count, "values");
    const int64_t row_count = rows.shape(0), stride = rows.shape(1);
    py::gil_scoped_release release;
    sum(from, row_count, stride, own, mine, count);
}

void bind_wire(py::module_& m) {
    m.def(
        "pack_bf16",
        [](const py::array& values, const py::array& packed, const std::optional<py::array>& residual) {
            const py::ssize_t count = values.size();
            const float* const from = array_pointer<float>(values, count, "values");
            uint16_t* const to = array_pointer<uint16_t>(packed, count, "packed");
            float* const rest = array_pointer<float>(residual, count, "residual");
            py::gil_scoped_release release;
            pack_bf16(from, rest, to, count);
        },
        "values"_a, "packed"_a, "residual"_a = py::none(),
        "Rounds float32 values to bfloat16, held as uint16.\n\n"
        "Args:\n"
        "    residual: float32, what earlier steps have lost by rounding, which is added first; it then holds what "
        "this step has lost.");
    m.def(
        "sum_bf16",
        [](const py::array& rows, int own, const py::array& values, const py::array& packed,
           const std::optional<py::array>& residual) {
            const py::ssize_t count = values.size();
            check_rows(rows, own, count);
            const uint16_t* const from = array_pointer<uint16_t>(rows, rows.size(), "rows");
            const float* const mine = array_pointer<float>(values, count, "values");
            uint16_t* const to = array_pointer<uint16_t>(packed, count, "packed");
            float* const rest = array_pointer<float>(residual, count, "residual");
            const int64_t row_count = rows.shape(0), stride = rows.shape(1);
            py::gil_scoped_release release;
            sum_bf16(from, row_count, stride, own, mine, rest, to, count);
        },
        "rows"_a, "own"_a, "values"_a, "packed"_a, "residual"_a = py::none(),
        "Sums rows (row_count, stride) of bfloat16 in float32, and rounds the sum once, to `packed`. In the place of "
        "row `own`, which is not read, are `values`, float32, rounded as by pack_bf16(). residual: float32; what "
        "rounding the sum loses is added to it.");
    m.def("sum_bf16_rows", sum_of_rows<uint16_t, sum_bf16_rows>, "rows"_a, "own"_a, "values"_a,
          "Sums rows (row_count, stride) of bfloat16, with `values`, float32, in the place of row `own`, which is not "
          "read. Writes the sum over `values`.");
    m.def("sum_rows", sum_of_rows<float, sum_rows>, "rows"_a, "own"_a, "values"_a,
          "Does what sum_bf16_rows() does with rows of float32.");
    m.def("unpack_bf16", unpack<unpack_bf16>, "packed"_a, "values"_a,
          "Writes bfloat16 numbers, held as uint16, to `values`, float32.");
    m.def("unpack_bf16_away", unpack<unpack_bf16_away>, "packed"_a, "values"_a,
          "Does the same with stores that bypass the caches, for values that are not read soon.");
}

}  // namespace engine
