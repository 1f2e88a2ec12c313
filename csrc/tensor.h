// A tensor is a view of a buffer: it has Caffe's shape, oneDNN's layout and, if it needs one, a gradient (`diff`).
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

// Where the bytes of a buffer are, which tells who places it.
enum class Home {
    activation,  // where the memory plan places it; not valid after its last reader has run
    parameter,   // in the parameter arena
    gradient,    // in the gradient arena, in the order in which backward finishes
    external,    // in the caller's memory, set before each step (data batches)
    owned,       // in memory of this buffer alone, as long as its program lives (outputs that Python reads)
};

// A range of bytes. Placing a buffer moves every dnnl::memory that view() has made of it. Joined buffers are one range
// with several names (views, sums whose gradients are all the same, results written over their inputs).
class Buffer : public std::enable_shared_from_this<Buffer> {
public:
    Buffer(size_t bytes, Home home) : bytes_(bytes), home_(home) {}
    Buffer(const Buffer&) = delete;

    // keeper: the owner of the memory, which is kept as long as this buffer points there.
    void place(void* address, std::shared_ptr<void> keeper);
    void swap_memory(Buffer& other);
    // Returns a memory over these bytes, the same one for the same layout.
    dnnl::memory view(const Layout& layout);
    // Makes two buffers one. At least one must be an activation, and the home is the other's; else this throws
    // std::logic_error.
    void join(const std::shared_ptr<Buffer>& other);
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
    // Throws std::length_error for a shape that no blob can have: with an empty axis, or with too many values.
    Tensor(std::string called, Dims dims, Home place);

    // A tensor is decided once it has a layout and a buffer. The first reader of a parameter decides its layout; all
    // others are decided when they are made.
    bool decided() const { return bool(buffer); }
    void decide(const Layout& wanted);
    void decide(const Layout& wanted, const BufferPtr& shared);

    // Returns a view of the same values without the gradient, for readers that send none.
    TensorPtr without_diff() const;
    // Returns a view of the same values with a gradient of its own, which is to be placed.
    static TensorPtr with_own_diff(const TensorPtr& tensor);

    // Returns the same bytes in another layout; the caller must know that the layouts agree.
    dnnl::memory as(const Layout& other) const;

    float* data() const { return static_cast<float*>(buffer->address()); }
    int64_t count() const;
    bool is_bf16() const { return layout.get_data_type() == dnnl::memory::data_type::bf16; }

    // Tells whether the bytes are what read() copies: Python can then read them in place.
    bool dense() const;
    // read() copies the values to a dense row-major float32 array of `shape`, write() from one. They throw
    // std::runtime_error if the tensor has no memory yet.
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
    TensorPtr origin;         // after with_own_diff(): the first tensor that had these values
    bool accumulate = false;  // whether writers add to this parameter's diff (iter_size, shared parameters)
};

// Return the elements of a memory or a tensor.
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
std::string layout_name(const Layout& layout);  // such as aBcd16b, with letters in the order of memory
// Returns the number of elements. Throws std::length_error if no integer holds it.
int64_t count_of(const Dims& shape);

}  // namespace engine
