// Faults that damaged files cause while they are read.
#include "bind.h"
#include "fault.h"

namespace engine {

void bind_fault(py::module_& m) {
    m.def(
        "reading",
        [](std::string_view file, const py::bytes& key, int seconds) { reading(file, std::string_view(key), seconds); },
        "file"_a, "key"_a, "seconds"_a = 0,
        "Blames the file for faults of the calling thread, such as SIGBUS, until done_reading(): the process then "
        "writes a line that names the file, and ends with status 1.\n\n"
        "Args:\n"
        "    file: its name for the line, such as \"LMDB train_db\".\n"
        "    key: the key of the item that is read; b\"\" if there is none.\n"
        "    seconds: of processor time; reading for longer counts as a fault. 0: there is no limit.");
    m.def("done_reading", &done_reading, "Stops blaming the file that reading() named.");
    m.def("speak_as", &speak_as, "name"_a, "pipe"_a, "socket"_a,
          "Sets how the line about a fault is written if there are several processes.\n\n"
          "Args:\n"
          "    name: the beginning of the line.\n"
          "    pipe: where the line is written, for the process that ends all of them. -1: the line goes to stderr.\n"
          "    socket: where \"fail\" is written before that. If the answer is \"late\", another process has told what "
          "is wrong, and this one ends without a line. -1: there is none.");
    m.def("hold_stderr", &hold_stderr, "on"_a,
          "Holds back what C libraries write to stderr, or with False writes what was held back. A fault discards it.");
}

}  // namespace engine
