// Faults that damaged files cause while they are read.
#include "bind.h"
#include "fault.h"

namespace engine {

void bind_fault(py::module_& m) {
    m.def(
        "reading",
        [](std::string_view file, const py::bytes& key, int seconds) { reading(file, std::string_view(key), seconds); },
        "file"_a, "key"_a, "seconds"_a = 0,
        "Until done_reading(), a fault of this thread, such as SIGBUS, is the file's, and so are more seconds of the "
        "processor's time, if they are given: it is named, and the process ends with status 1.");
    m.def("done_reading", &done_reading);
    m.def(
        "speak_as", &speak_as, "name"_a, "pipe"_a, "socket"_a,
        "How the line begins; a pipe where it is written for who ends all processes; a socket where \"fail\" is asked "
        "otherwise. -1: none.");
    m.def("hold_stderr", &hold_stderr, "on"_a,
          "Whether what C libraries write to stderr waits, and is lost in a fault.");
}

}  // namespace engine
