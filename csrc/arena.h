// One block of memory, allocated and touched once. Page faults cost PyTorch half of its step here; a plan has none.
#pragma once

#include <cstddef>

namespace engine {

class Arena {
public:
    explicit Arena(size_t bytes);  // zero-filled, huge pages where the kernel gives them; throws std::bad_alloc
    ~Arena();
    Arena(const Arena&) = delete;

    char* data() const { return data_; }
    size_t bytes() const { return bytes_; }

private:
    char* data_;
    size_t bytes_;
};

}  // namespace engine
