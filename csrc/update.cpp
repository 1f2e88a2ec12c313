#include "update.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "kernels/vectorised.h"
#include "wire.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace engine {
namespace {

constexpr int64_t task_floats = 16384;  // of a task: 64 KB of each arena, so that all fit into a second-level cache
constexpr int64_t block_floats = 4096;  // unpacked at a time, and used while they are in the first-level cache
constexpr int lane_count = 8;

// Sets flush-to-zero and denormals-are-zero in the calling thread for its lifetime: a server's thread is not one of the
// compute threads, which have them set.
class NoDenormals {
public:
#if defined(__x86_64__)
    NoDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
    ~NoDenormals() { _mm_setcsr(before_); }

private:
    unsigned before_;
#endif
};

// Sums in fixed lanes, so that the order of the additions is the same for every vector width.
ENGINE_VECTORISED double sum_of_squares(const float* __restrict values, int64_t count) {
    double lanes[lane_count] = {};
    const int64_t whole = count - count % lane_count;
    for (int64_t i = 0; i < whole; i += lane_count)
        for (int lane = 0; lane < lane_count; ++lane)
            lanes[lane] += double(values[i + lane]) * double(values[i + lane]);
    for (int64_t i = whole; i < count; ++i) lanes[i - whole] += double(values[i]) * double(values[i]);
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

std::map<std::string, UpdateRule>& registry() {
    static auto& rules = *new std::map<std::string, UpdateRule>;  // servers may read it while the process ends
    return rules;
}

template <typename Map>
std::string names(const Map& map) {
    std::string text;
    for (const auto& [name, value] : map) text += (text.empty() ? "" : ", ") + name;
    return text;
}

const UpdateRule& find_rule(const std::string& name) {
    const auto found = registry().find(name);
    if (found == registry().end())
        throw std::invalid_argument("unknown update rule \"" + name + "\"; known: " + names(registry()));
    return found->second;
}

void check_range(int64_t begin, int64_t end, int64_t count) {
    if (begin < 0 || end < begin || end > count)
        throw std::invalid_argument("range [" + std::to_string(begin) + ", " + std::to_string(end) +
                                    ") in an arena of " + std::to_string(count) + " floats");
}

}  // namespace

const std::map<std::string, UpdateRule>& update_rules() { return registry(); }

RegisterUpdateRule::RegisterUpdateRule(UpdateRule rule) {
    if (rule.histories.size() > most_histories) throw std::logic_error(rule.name + ": too many histories");
    const std::string name = rule.name;
    if (!registry().emplace(name, std::move(rule)).second) throw std::logic_error("two update rules named " + name);
}

float Factors::constant(const char* name) const {
    const auto found = constants->find(name);
    if (found == constants->end())
        throw std::invalid_argument(std::string("the update rule reads ") + name + ", which it does not declare");
    return found->second;
}

Updater::Updater(const std::string& rule, FloatArena weights, FloatArena gradients,
                 const std::vector<FloatArena>& histories, const std::vector<std::vector<ParameterRange>>& buckets,
                 std::map<std::string, float> constants, WeightDecay weight_decay, LocalRates local_rates)
    : rule_(find_rule(rule)),
      weights_(weights.data),
      gradients_(gradients.data),
      constants_(std::move(constants)),
      decay_(weight_decay),
      local_(local_rates) {
    for (const FloatArena& history : histories) histories_.push_back(history.data);
    if (histories_.size() != rule_.histories.size())
        throw std::invalid_argument("update rule " + rule + " keeps " + std::to_string(rule_.histories.size()) +
                                    " histories, got " + std::to_string(histories_.size()));
    check_constants();
    for (const auto& ranges : buckets) {
        tasks_.emplace_back();
        for (const ParameterRange& range : ranges) {
            check_range(range.begin, range.end, gradients.count);
            check_range(range.begin + range.weights_shift, range.end + range.weights_shift, weights.count);
            for (const FloatArena& history : histories)
                check_range(range.begin + range.history_shift, range.end + range.history_shift, history.count);
            if (range.parameter < 0) throw std::invalid_argument("the parameter of a range: expected 0 or more");
            local_rates_.resize(std::max(local_rates_.size(), size_t(range.parameter) + 1), 1);
            for (int64_t begin = range.begin; begin < range.end; begin += task_floats) {
                Task task{range};
                task.begin = begin;
                task.end = std::min(begin + task_floats, range.end);
                tasks_.back().push_back(task);
            }
        }
    }
}

void Updater::check_constants() const {
    std::map<std::string, float> declared;
    for (const Constant& constant : rule_.constants) declared[constant.field] = 0;
    if (names(declared) != names(constants_))
        throw std::invalid_argument("update rule " + rule_.name + " reads " + names(declared) + ", got " +
                                    (constants_.empty() ? "nothing" : names(constants_)));
    // Applies the rule to no floats, so that one that reads what it does not declare fails here, not in a thread.
    const ParameterRange none{0, 0, 0, 0, 0};
    apply(none, factors(none), 0, 0, gradients_);
}

void Updater::set_step(double rate, double scale, int64_t iteration, double momentum_correction) {
    rate_ = rate;
    scale_ = scale;
    clip_factor_ = 1;
    momentum_correction_ = momentum_correction;
    updates_ = double(iteration) + 1;
}

void Updater::set_weight_decay(float factor) { decay_.factor = factor; }

void Updater::set_constant(const std::string& field, float value) {
    const auto found = constants_.find(field);
    if (found == constants_.end())
        throw std::invalid_argument("update rule " + rule_.name + " reads " + names(constants_) + ", not " + field);
    found->second = value;
}

void Updater::set_clip_factor(double factor) { clip_factor_ = factor; }

std::vector<Updater::Task>& Updater::tasks(int bucket) {
    if (bucket < 0 || bucket >= buckets())
        throw std::out_of_range("bucket " + std::to_string(bucket) + " of " + std::to_string(buckets()));
    return tasks_[size_t(bucket)];
}

double Updater::measure(int bucket, int threads) {
    auto& tasks = this->tasks(bucket);
    const int64_t count = int64_t(tasks.size());
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t i = 0; i < count; ++i) {
        Task& task = tasks[size_t(i)];
        task.gradient_squares = sum_of_squares(gradients_ + task.begin, task.end - task.begin);
        if (has_local_rates())
            task.weight_squares = sum_of_squares(weights_ + task.begin + task.weights_shift, task.end - task.begin);
    }
    double sum = 0;
    for (const Task& task : tasks) sum += task.gradient_squares;
    return sum;
}

std::vector<double> Updater::squares() const {
    if (!has_local_rates()) return {};
    const size_t count = local_rates_.size();
    std::vector<double> sums(2 * count);
    for (const auto& tasks : tasks_)  // in one order, whichever threads measured them: the same bits on every rank
        for (const Task& task : tasks) {
            sums[size_t(task.parameter)] += task.gradient_squares;
            sums[count + size_t(task.parameter)] += task.weight_squares;
        }
    return sums;
}

void Updater::set_local_rates(const std::vector<double>& squares) {
    const size_t count = has_local_rates() ? local_rates_.size() : 0;
    if (squares.size() != 2 * count)
        throw std::invalid_argument("layer-wise rates: expected " + std::to_string(2 * count) +
                                    " sums of squares, got " + std::to_string(squares.size()));
    for (size_t i = 0; i < count; ++i) {
        const double g = std::sqrt(squares[i]) * scale_ * clip_factor_, w = std::sqrt(squares[count + i]);
        const bool known = g > 0 && w > 0;
        const double decay = local_.decays ? double(decay_.factor) : 0;
        local_rates_[i] = known ? double(local_.ratio) * w / (g + decay * w) : 1;
    }
}

double Updater::rate(const ParameterRange& range) const {
    const bool is_local = has_local_rates() && range.lr_mult > 0 && !(local_.decayed_only && range.decay_mult == 0);
    if (!is_local) return rate_ * double(range.lr_mult);
    const double local = local_rates_[size_t(range.parameter)];
    return local_.clip ? std::min(rate_, local) : rate_ * local;
}

Factors Updater::factors(const ParameterRange& range) const {
    const float decay = decay_.factor * range.decay_mult;
    Factors factors;
    factors.scale = float(scale_ * clip_factor_);
    factors.l2 = decay_.l1 ? 0 : decay;
    factors.l1 = decay_.l1 ? decay : 0;
    factors.rate = float(rate(range));
    factors.momentum_correction = float(momentum_correction_);
    factors.updates = updates_;
    factors.constants = &constants_;
    return factors;
}

void Updater::apply(const ParameterRange& range, const Factors& factors, int64_t begin, int64_t end,
                    const float* gradients) const {
    float* const weights = weights_ + begin + range.weights_shift;
    Arrays arrays{weights, gradients, {}, end - begin};
    for (size_t i = 0; i < histories_.size(); ++i) arrays.histories[i] = histories_[i] + begin + range.history_shift;
    rule_.apply(arrays, factors);
    if (std::isinf(range.least) && std::isinf(range.most)) return;
    for (int64_t i = 0; i < end - begin; ++i) weights[i] = std::min(std::max(weights[i], range.least), range.most);
}

void Updater::apply(int bucket, int threads) const {
    const auto& tasks = this->tasks(bucket);
    const int64_t count = int64_t(tasks.size());
    const auto whole = [this](const Task& t) { apply(t, factors(t), t.begin, t.end, gradients_ + t.begin); };
    if (threads <= 1) {  // in a server's thread, which shall not start an OpenMP team
        NoDenormals guard;
        for (const Task& task : tasks) whole(task);
        return;
    }
#pragma omp parallel num_threads(threads)
    {
        NoDenormals guard;
#pragma omp for schedule(static)
        for (int64_t i = 0; i < count; ++i) whole(tasks[size_t(i)]);
    }
}

void Updater::apply_range(int bucket, int64_t begin, int64_t end, const uint16_t* packed, bool keep) const {
    NoDenormals guard;
    float buffer[block_floats];
    for (const Task& task : tasks(bucket)) {
        const int64_t first = std::max(begin, task.begin), last = std::min(end, task.end);
        if (first >= last) continue;
        const Factors factors = this->factors(task);
        if (!packed) {
            apply(task, factors, first, last, gradients_ + first);
            continue;
        }
        for (int64_t at = first; at < last; at += block_floats) {
            const int64_t next = std::min(at + block_floats, last);
            float* const gradients = keep ? gradients_ + at : buffer;
            unpack_bf16(packed + (at - begin), gradients, next - at);
            apply(task, factors, at, next, gradients);
        }
    }
}

void Updater::apply_rows(int bucket, int64_t begin, int64_t end, const uint16_t* rows, int64_t row_count,
                         int64_t stride, int64_t own, uint16_t* packed, bool keep) const {
    NoDenormals guard;
    float buffer[block_floats];
    int64_t done = begin;
    for (const Task& task : tasks(bucket)) {
        const int64_t first = std::max(begin, task.begin), last = std::min(end, task.end);
        if (first >= last) continue;
        std::fill(packed + (done - begin), packed + (first - begin), uint16_t(0));  // the gap between two parameters
        done = last;
        const Factors factors = this->factors(task);
        for (int64_t at = first; at < last; at += block_floats) {
            const int64_t next = std::min(at + block_floats, last);
            float* const gradients = keep ? gradients_ + at : buffer;
            if (!keep) std::copy(gradients_ + at, gradients_ + next, buffer);
            sum_bf16_rows(rows + (at - begin), row_count, stride, own, gradients, next - at);
            apply(task, factors, at, next, gradients);
            pack_bf16(weights_ + at + task.weights_shift, nullptr, packed + (at - begin), next - at);
        }
    }
    std::fill(packed + (done - begin), packed + (end - begin), uint16_t(0));
}

}  // namespace engine
