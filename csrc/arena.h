// One block of memory, which is allocated and touched once, so that no step has page faults: they cost PyTorch half of
// its step.
#pragma once

#include <cstddef>

namespace engine {

class Arena {
public:
    explicit Arena(size_t bytes);  // zeros, in huge pages if the system gives them; throws std::bad_alloc
    ~Arena();
    Arena(const Arena&) = delete;

    char* data() const { return data_; }
    size_t bytes() const { return bytes_; }

private:
    char* data_;
    size_t bytes_;
};

}  // namespace engine
