// A tensor is a view of a buffer: Caffe's shape, oneDNN's layout, and, where one is needed, its gradient (`diff`).
#pragma once

#include <cstdint>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <vector>

namespace engine {

using Dims = dnnl::memory::dims;
using Layout = dnnl::memory::desc;

const dnnl::engine& cpu();

// Where the bytes of a buffer live, and so who places it.
enum class Home {
    activation,  // the memory plan; dead once its last reader has run
    parameter,   // the parameter arena
    gradient,    // the gradient arena, in the order in which backward finishes
    external,    // the caller's own memory, set before each step (data batches)
    owned,       // this buffer alone; lives as long as its program (outputs that Python reads)
};

// A range of bytes. Every dnnl::memory that looks into it moves along when the buffer is placed. Buffers can be joined:
// they are then one range with several names (views, sums whose gradients are all the same, results written over their
// inputs).
class Buffer : public std::enable_shared_from_this<Buffer> {
public:
    Buffer(size_t bytes, Home home) : bytes_(bytes), home_(home) {}
    Buffer(const Buffer&) = delete;

    // keeper: what has the memory, and lives at least as long as this buffer points there.
    void place(void* address, std::shared_ptr<void> keeper);
    void swap_memory(Buffer& other);
    dnnl::memory view(const Layout& layout);          // the same one each time, so that there are no more than layouts
    void join(const std::shared_ptr<Buffer>& other);  // this one's home wins over an activation's
    const Buffer* root() const { return joined_ ? joined_->root() : this; }
    Buffer* root() { return joined_ ? joined_->root() : this; }

    void* address() const { return root()->address_; }
    std::shared_ptr<void> keeper() const { return root()->keeper_; }
    size_t bytes() const { return root()->bytes_; }
    Home home() const { return root()->home_; }
    void set_home(Home home) { root()->home_ = home; }
    void count_write() { root()->writes_++; }
    uint64_t writes() const { return root()->writes_; }

private:
    size_t bytes_;
    Home home_;
    void* address_ = nullptr;
    std::shared_ptr<void> keeper_;
    uint64_t writes_ = 0;
    std::vector<dnnl::memory> views_;
    std::shared_ptr<Buffer> joined_;
};

using BufferPtr = std::shared_ptr<Buffer>;
struct Tensor;
using TensorPtr = std::shared_ptr<Tensor>;

struct Tensor {
    // Throws std::length_error for a shape that no blob has: an axis of nothing, or more bytes than can be counted.
    Tensor(std::string called, Dims dims, Home place);

    // Parameters take the layout that their first reader asks for; everything else is decided where it is made.
    bool decided() const { return bool(buffer); }
    void decide(const Layout& wanted);
    void decide(const Layout& wanted, const BufferPtr& shared);

    // The same values without the gradient, for readers that send none.
    TensorPtr without_diff() const;
    // The same values with a gradient of its own, which is to be placed.
    static TensorPtr with_own_diff(const TensorPtr& tensor);

    // The same bytes described differently; the caller vouches that the layouts agree.
    dnnl::memory as(const Layout& other) const;

    float* data() const { return static_cast<float*>(buffer->address()); }
    int64_t count() const;
    bool is_bf16() const { return layout.get_data_type() == dnnl::memory::data_type::bf16; }

    // Whether the bytes are what read() gives: Python can then look at them in place.
    bool dense() const;
    // Copies to and from a dense row-major float32 array of `shape`.
    void read(float* plain) const;
    void write(const float* plain);
    uint64_t writes() const { return buffer->writes(); }  // how often write() has been called, for any view of them

    std::string name;
    Dims shape;  // Caffe's; () for a scalar
    Home home;
    Layout
        plain_override;  // how files and Python see the values when that is not row-major `shape` (transposed weights)
    Layout layout;
    BufferPtr buffer;
    dnnl::memory memory;
    TensorPtr diff;
    TensorPtr origin;         // of with_own_diff(): the first tensor that had these values
    bool accumulate = false;  // of a parameter's diff: writers add to it (iter_size, shared parameters)
};

// Where a memory's or a tensor's elements are.
template <typename T>
T* address(const dnnl::memory& memory) {
    return static_cast<T*>(memory.get_data_handle());
}
template <typename T>
T* address(const TensorPtr& tensor) {
    return static_cast<T*>(tensor->buffer->address());
}

Dims dense_dims(const Dims& shape);  // oneDNN has no scalars: () becomes (1)
Layout plain_layout(const Dims& shape, dnnl::memory::data_type type = dnnl::memory::data_type::f32);
bool is_plain(const Layout& layout);
std::string layout_name(const Layout& layout);  // such as aBcd16b; letters in the order of memory
// Throws std::length_error where no integer holds it.
int64_t count_of(const Dims& shape);

}  // namespace engine
