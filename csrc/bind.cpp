// The extension module, and what it reports about the processor.
#include "bind.h"

#include "kernels/isa.h"
#include "kernels/winograd.h"
#include "ops/common/bf16_gain.h"
#include "tensor.h"
#include "threads.h"

namespace engine {

static std::string onednn_version() {
    const auto* version = dnnl_version();
    return std::to_string(version->major) + "." + std::to_string(version->minor) + "." + std::to_string(version->patch);
}

static std::string onednn_isa() {
#if defined(__aarch64__)
    return "AArch64";  // oneDNN has names only for x86's instruction sets
#endif
    switch (dnnl::get_effective_cpu_isa()) {
        case dnnl::cpu_isa::sse41:
            return "SSE4.1";
        case dnnl::cpu_isa::avx:
            return "AVX";
        case dnnl::cpu_isa::avx2:
            return "AVX2";
        case dnnl::cpu_isa::avx2_vnni:
        case dnnl::cpu_isa::avx2_vnni_2:
            return "AVX2 with VNNI";
        case dnnl::cpu_isa::avx512_core:
            return "AVX-512";
        case dnnl::cpu_isa::avx512_core_vnni:
            return "AVX-512 with VNNI";
        case dnnl::cpu_isa::avx512_core_bf16:
            return "AVX-512 with bf16";
        case dnnl::cpu_isa::avx512_core_fp16:
            return "AVX-512 with bf16 and fp16";
        case dnnl::cpu_isa::avx512_core_amx:
            return "AVX-512 with AMX";
        case dnnl::cpu_isa::avx512_core_amx_fp16:
            return "AVX-512 with AMX and its fp16";
        default:
            return "unknown (" + std::to_string(int(dnnl::get_effective_cpu_isa())) + ")";
    }
}

// Returns the limit for our own kernels: what oneDNN may use.
static Isa allowed_isa() {
    const auto allows = [isa = int(dnnl::get_effective_cpu_isa())](dnnl::cpu_isa needed) {
        return (isa & int(needed)) == int(needed);
    };
    if (allows(dnnl::cpu_isa::avx512_core_amx)) return Isa::amx;
    if (allows(dnnl::cpu_isa::avx512_core_bf16)) return Isa::avx512_bf16;
    if (allows(dnnl::cpu_isa::avx512_core)) return Isa::avx512;
    return allows(dnnl::cpu_isa::avx2) ? Isa::avx2 : Isa::any;
}

}  // namespace engine

PYBIND11_MODULE(_ext, m) {
    using namespace engine;
    limit_isa(allowed_isa());
    m.doc() = "The executor of engine: ops on oneDNN, run without the GIL.";
    bind_tensor(m);
    bind_updates(m);
    bind_program(m);  // after what its signatures name
    bind_wire(m);
    bind_image(m);
    bind_fault(m);
    m.def("onednn_version", &onednn_version);
    m.def("bf16_gain", &bf16_gain, ReleaseGil(),
          "Returns how many times as fast as in float32 a thread multiplies matrices in bf16; 0 if oneDNN has no bf16 "
          "instructions here.");
    m.def("has_amx", [] { return may_use(Isa::amx); }, "Returns whether oneDNN may use AMX on this processor.");
    m.def(
        "winograd_lanes", [](const std::string& dtype) { return winograd_lanes(dtype == "bf16"); }, "dtype"_a,
        "Returns the channels in a block of Winograd's algorithm for blobs of dtype \"f32\" or \"bf16\"; 0 if it has "
        "no kernels for this processor.");
    m.def("onednn_isa", &onednn_isa, "Returns the name of the best instruction set that oneDNN uses here.");
    m.def("flush_denormals", &flush_denormals,
          "Makes denormals count as zero in the calling thread, as long as the thread lives.");
    m.def("bound_cores", &bound_cores,
          "Returns the cores to which OMP_PROC_BIND binds the threads that compute, ascending; [] if it is not set.");
    m.def("threads", &threads,
          "Returns the number of OpenMP threads that compute: OMP_NUM_THREADS, or the cores this process may use.");
}
