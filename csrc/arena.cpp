#include "arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace engine {

static constexpr size_t huge_page = size_t(2) << 20, small_page = size_t(4) << 10;

// Rounds up to huge pages, or to small ones below the size of a huge one, because nets own many small blobs.
static size_t whole_pages(size_t bytes) {
    const size_t page = bytes < huge_page ? small_page : huge_page;
    return (std::max<size_t>(bytes, 1) + page - 1) / page * page;
}

Arena::Arena(size_t bytes) : bytes_(whole_pages(bytes)) {
    void* block = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<char*>(block);
    madvise(data_, bytes_, MADV_HUGEPAGE);
    // Each page is touched by the thread that will use it, so that it lies on that thread's NUMA node. The system fills
    // new pages with zeros, huge or small.
#pragma omp parallel for schedule(static)
    for (size_t at = 0; at < bytes_; at += huge_page)
        for (size_t page = at; page < std::min(at + huge_page, bytes_); page += small_page) data_[page] = 0;
}

Arena::~Arena() { munmap(data_, bytes_); }

}  // namespace engine
