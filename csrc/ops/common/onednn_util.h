// The few oneDNN idioms that every op repeats.
#pragma once

#include "op.h"

namespace engine {

using dnnl::algorithm;
using dnnl::memory;
using dnnl::primitive_attr;
using dnnl::prop_kind;

inline Layout any_layout(const Dims& dims, memory::data_type type) {
    return Layout(dims, type, memory::format_tag::any);
}

// Scratchpads come from the program's shared scratch, so that no primitive allocates while it runs.
inline primitive_attr user_scratchpad() {
    primitive_attr attr;
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    return attr;
}

inline prop_kind forward_kind(const OpSpec& spec) {
    return spec.backward ? prop_kind::forward_training : prop_kind::forward_inference;
}

}  // namespace engine
