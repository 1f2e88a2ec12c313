#include "tensor.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>

namespace engine {

static constexpr int64_t most_values = INT64_MAX / sizeof(double);  // of a tensor, so that its bytes can be counted

const dnnl::engine& cpu() {
    static const dnnl::engine instance(dnnl::engine::kind::cpu, 0);
    return instance;
}

void Buffer::place(void* address, std::shared_ptr<void> keeper) {
    Buffer* const all = root();
    all->keeper_ = std::move(keeper);
    if (address == all->address_) return;
    all->address_ = address;
    for (auto& memory : all->views_) memory.set_data_handle(address);
}

void Buffer::swap_memory(Buffer& other) {
    void* const address = this->address();
    std::shared_ptr<void> keeper = this->keeper();
    place(other.address(), other.keeper());
    other.place(address, std::move(keeper));
}

dnnl::memory Buffer::view(const Layout& layout) {
    Buffer* const all = root();
    for (const auto& memory : all->views_)
        if (memory.get_desc() == layout) return memory;
    return all->views_.emplace_back(layout, cpu(), all->address_);
}

void Buffer::join(const std::shared_ptr<Buffer>& other) {
    Buffer* into = root();
    Buffer* from = other->root();
    if (into == from) return;
    if (into->home_ == Home::activation && from->home_ != Home::activation) std::swap(into, from);
    if (from->home_ != Home::activation) throw std::logic_error("two buffers with homes of their own cannot be joined");
    into->bytes_ = std::max(into->bytes_, from->bytes_);
    for (auto& memory : from->views_) {
        memory.set_data_handle(into->address_);
        into->views_.push_back(memory);
    }
    from->views_.clear();
    from->joined_ = into->shared_from_this();
}

static int64_t product(int64_t a, int64_t b) {
    int64_t result;
    if (__builtin_mul_overflow(a, b, &result)) throw std::length_error("more values than can be counted");
    return result;
}

int64_t count_of(const Dims& shape) { return std::accumulate(shape.begin(), shape.end(), int64_t(1), product); }

Dims dense_dims(const Dims& shape) { return shape.empty() ? Dims{1} : shape; }

Layout plain_layout(const Dims& shape, dnnl::memory::data_type type) {
    const Dims dims = dense_dims(shape);
    Dims strides(dims.size(), 1);
    for (int i = int(dims.size()) - 2; i >= 0; i--) strides[i] = product(strides[i + 1], dims[i + 1]);
    return Layout(dims, type, strides);
}

bool is_plain(const Layout& layout) { return layout == plain_layout(layout.get_dims(), layout.get_data_type()); }

std::string layout_name(const Layout& layout) {
    if (layout.get_format_kind() != dnnl::memory::format_kind::blocked) return "opaque";
    const Dims strides = layout.get_strides(), blocks = layout.get_inner_blks(), axes = layout.get_inner_idxs();
    std::vector<int> order(strides.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return strides[a] > strides[b]; });
    std::string name;
    for (int axis : order) {
        const bool blocked = std::find(axes.begin(), axes.end(), axis) != axes.end();
        name += char((blocked ? 'A' : 'a') + axis);
    }
    for (size_t i = 0; i < blocks.size(); i++) name += std::to_string(blocks[i]) + char('a' + axes[i]);
    return name;
}

// The graph checks shapes first, with messages that name the prototxt's line; this catches what gets past it.
Tensor::Tensor(std::string called, Dims dims, Home place)
    : name(std::move(called)), shape(std::move(dims)), home(place) {
    const bool empty = std::any_of(shape.begin(), shape.end(), [](int64_t dim) { return dim < 1; });
    if (empty || count_of(shape) > most_values)
        throw std::length_error("tensor '" + name + "' would have an empty axis or too many values");
}

TensorPtr Tensor::without_diff() const {
    auto tensor = std::make_shared<Tensor>(*this);
    tensor->diff = nullptr;
    return tensor;
}

TensorPtr Tensor::with_own_diff(const TensorPtr& tensor) {
    auto other = std::make_shared<Tensor>(*tensor);
    other->origin = tensor->origin ? tensor->origin : tensor;
    other->diff = std::make_shared<Tensor>(tensor->name, tensor->shape, Home::gradient);
    other->diff->plain_override = tensor->diff->plain_override;
    other->diff->decide(tensor->diff->layout);
    return other;
}

int64_t Tensor::count() const { return count_of(shape); }

void Tensor::decide(const Layout& wanted) { decide(wanted, std::make_shared<Buffer>(wanted.get_size(), home)); }

void Tensor::decide(const Layout& wanted, const BufferPtr& shared) {
    layout = wanted;
    buffer = shared;
    memory = buffer->view(layout);
    if (diff && !diff->decided()) diff->decide(wanted);
}

dnnl::memory Tensor::as(const Layout& other) const { return buffer->view(other); }

// Copies a memory to another: the bytes, if both have one layout, else by one of oneDNN's reorders.
static void copy(const dnnl::memory& from, const dnnl::memory& to) {
    if (from.get_desc() == to.get_desc()) {
        std::memcpy(to.get_data_handle(), from.get_data_handle(), to.get_desc().get_size());
        return;
    }
    dnnl::stream stream(cpu());
    dnnl::memory source = from, target = to;
    dnnl::reorder(source, target).execute(stream, source, target);
    stream.wait();
}

// Returns the layout in which files and Python see the values. Throws std::runtime_error if there is no memory yet.
static Layout outside(const Tensor& tensor) {
    if (!tensor.buffer || !tensor.buffer->address())
        throw std::runtime_error("tensor '" + tensor.name + "' has no memory yet");
    return tensor.plain_override.get_ndims() ? tensor.plain_override : plain_layout(tensor.layout.get_dims());
}

bool Tensor::dense() const { return layout == outside(*this); }

void Tensor::read(float* plain) const { copy(memory, dnnl::memory(outside(*this), cpu(), plain)); }

void Tensor::write(const float* plain) {
    copy(dnnl::memory(outside(*this), cpu(), const_cast<float*>(plain)), memory);
    buffer->count_write();
}

}  // namespace engine
