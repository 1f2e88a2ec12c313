// Shared by bind*.cpp, the Python interface: they alone use pybind11, one file for each subject. What can block or take
// long runs without the GIL.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <optional>
#include <string>

namespace py = pybind11;
using namespace py::literals;

namespace engine {

using FloatArray = py::array_t<float, py::array::c_style>;
using ReleaseGil = py::call_guard<py::gil_scoped_release>;

// Returns the elements of an array for a reduction or an update; nullptr for None. Raises ValueError unless it is a
// writable, contiguous array of T with `least` elements or more: a kernel writes without checking. what: its name, for
// messages.
template <typename T>
T* array_pointer(const std::optional<py::array>& array, py::ssize_t least, const char* what) {
    if (!array) return nullptr;
    if (!py::array_t<T, py::array::c_style>::check_(*array) || array->size() < least || !array->writeable())
        throw py::value_error(std::string(what) + ": expected a writable, contiguous array of " +
                              std::to_string(least) + " or more, of another type perhaps");
    return static_cast<T*>(const_cast<void*>(array->data()));
}

void bind_tensor(py::module_& m);
void bind_program(py::module_& m);
void bind_updates(py::module_& m);
void bind_wire(py::module_& m);
void bind_image(py::module_& m);
void bind_fault(py::module_& m);

}  // namespace engine
