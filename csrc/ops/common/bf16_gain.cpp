#include "ops/common/bf16_gain.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "tensor.h"

namespace engine {
namespace {

using dnnl::memory;

// A product of matrices that stay in the caches.
class Product {
public:
    explicit Product(memory::data_type type) {
        constexpr Dims::value_type size = 256;
        const Dims dims{size, size};
        const Layout free(dims, type, memory::format_tag::any), plain(dims, type, memory::format_tag::ab);
        const dnnl::matmul::primitive_desc pd(cpu(), plain, free, plain);
        run_ = dnnl::matmul(pd);
        for (const auto& [argument, layout] :
             {std::pair{DNNL_ARG_SRC, pd.src_desc()}, std::pair{DNNL_ARG_WEIGHTS, pd.weights_desc()},
              std::pair{DNNL_ARG_DST, pd.dst_desc()}}) {
            memory blob(layout, cpu());
            std::fill_n(address<char>(blob), layout.get_size(), 0);
            arguments_.emplace(argument, blob);
        }
    }

    double seconds() {
        const auto begin = std::chrono::steady_clock::now();
        run_.execute(stream_, arguments_);
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }

private:
    dnnl::matmul run_;
    std::unordered_map<int, memory> arguments_;
    dnnl::stream stream_{cpu()};
};

}  // namespace

// Times both products in one thread. Returns the ratio of the shortest times, 0 without bf16 instructions.
static double measured() {
    const auto isa = int(dnnl::get_effective_cpu_isa()), needed = int(dnnl::cpu_isa::avx512_core_bf16);
    if ((isa & needed) != needed) return 0;
    const int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    Product wide(memory::data_type::f32), narrow(memory::data_type::bf16);
    double in_wide = std::numeric_limits<double>::max(), in_narrow = in_wide;
    for (int run = 0; run < 12; run++) {  // in turn, so that a change of the processor's frequency affects both
        in_wide = std::min(in_wide, wide.seconds());
        in_narrow = std::min(in_narrow, narrow.seconds());
    }
    omp_set_num_threads(threads);
    return in_wide / in_narrow;
}

double bf16_gain() {
    static const double gain = measured();
    return gain;
}

}  // namespace engine
