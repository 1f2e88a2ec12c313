// The functions of OpenMP that csrc/ and oneDNN call, in place of libgomp's. A team makes a thread for each of its
// members and joins it at the end. The thread sanitizer sees these threads, and the barriers and mutexes of pthreads,
// but not libgomp's own. Loops are dealt out without a shared counter, which would order what OpenMP does not order.
// Loaded by tests/sanitize/run.py. (A call of a libgomp function that is missing here ends the process.)
#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

namespace {

using Body = void (*)(void*);
using Unsigned = unsigned long long;

// Iterations [first, last) in steps. A member takes `turn` of them at a time; 0 divides them evenly, in one turn.
struct Range {
    long first, last, step, turn;
};

struct Team {
    Team(Body function, void* argument, int members, const Range& given)
        : body(function), data(argument), size(members), range(given) {
        pthread_barrier_init(&barrier, nullptr, unsigned(members));
    }
    ~Team() { pthread_barrier_destroy(&barrier); }
    Team(const Team&) = delete;

    Body body;
    void* data;
    int size;
    Range range;  // of the loop, if that is the whole body
    pthread_barrier_t barrier;
    std::vector<pthread_t> others;
};

struct Member {
    // Finds the member's first turn of a loop. Turns go to the members one after the other.
    void deal(const Range& range) {
        const long rounding = range.step > 0 ? range.step - 1 : range.step + 1;
        const long all = std::max(0L, (range.last - range.first + rounding) / range.step);
        length = range.step * (range.turn ? range.turn : std::max(1L, (all + team->size - 1) / team->size));
        next = range.first + number * length;
        last = range.last;
    }

    bool take(long* from, long* to) {
        if (length > 0 ? next >= last : next <= last) return false;
        *from = next;
        *to = length > 0 ? std::min(next + length, last) : std::max(next + length, last);
        next += team->size * length;
        return true;
    }

    Team* team;
    int number;
    long next = 0, last = 0, length = 0;
};

thread_local std::vector<Member> teams;  // the teams that the thread is in, the innermost last
thread_local int wanted = 0;             // what omp_set_num_threads() was given
pthread_mutex_t critical = PTHREAD_MUTEX_INITIALIZER, atomic = PTHREAD_MUTEX_INITIALIZER;

bool in_parallel() {
    return std::any_of(teams.begin(), teams.end(), [](const Member& member) { return member.team->size > 1; });
}

int most() {
    if (wanted) return wanted;
    const char* variable = std::getenv("OMP_NUM_THREADS");
    return std::max(1, variable ? std::atoi(variable) : 1);
}

void enter(Team* team, int number) {
    teams.push_back({team, number});
    if (team->range.step) teams.back().deal(team->range);
}

void* run(void* given) {
    const std::unique_ptr<Member> member(static_cast<Member*>(given));
    enter(member->team, member->number);
    member->team->body(member->team->data);
    teams.pop_back();
    return nullptr;
}

// Begins a team. `threads` is 0 for as many members as possible. A team within another has one member.
void begin(Body body, void* data, unsigned threads, const Range& range = {}) {
    const int members = in_parallel() ? 1 : threads ? int(threads) : most();
    Team* team = new Team(body, data, members, range);
    for (int other = 1; other < members; other++) {
        pthread_t thread;
        if (pthread_create(&thread, nullptr, run, new Member{team, other}) != 0) std::abort();
        team->others.push_back(thread);
    }
    enter(team, 0);
}

void end() {
    const std::unique_ptr<Team> team(teams.back().team);
    for (const pthread_t thread : team->others) pthread_join(thread, nullptr);
    teams.pop_back();
}

bool start(const Range& range, long* from, long* to) {
    teams.back().deal(range);
    return teams.back().take(from, to);
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

void GOMP_parallel(Body body, void* data, unsigned threads, unsigned) {
    begin(body, data, threads);
    body(data);
    end();
}
void GOMP_parallel_start(Body body, void* data, unsigned threads) { begin(body, data, threads); }
void GOMP_parallel_end() { end(); }
void GOMP_parallel_loop_nonmonotonic_dynamic(Body body, void* data, unsigned threads, long first, long last, long step,
                                             long turn, unsigned) {
    begin(body, data, threads, {first, last, step, turn});
    body(data);
    end();
}

void GOMP_barrier() {
    if (!teams.empty()) pthread_barrier_wait(&teams.back().team->barrier);
}
void GOMP_critical_start() { pthread_mutex_lock(&critical); }
void GOMP_critical_end() { pthread_mutex_unlock(&critical); }
void GOMP_atomic_start() { pthread_mutex_lock(&atomic); }
void GOMP_atomic_end() { pthread_mutex_unlock(&atomic); }

bool GOMP_loop_static_start(long first, long last, long step, long turn, long* from, long* to) {
    return start({first, last, step, turn}, from, to);
}
bool GOMP_loop_static_next(long* from, long* to) { return teams.back().take(from, to); }
bool GOMP_loop_nonmonotonic_dynamic_start(long first, long last, long step, long turn, long* from, long* to) {
    return start({first, last, step, turn}, from, to);
}
bool GOMP_loop_nonmonotonic_dynamic_next(long* from, long* to) { return teams.back().take(from, to); }
bool GOMP_loop_ull_nonmonotonic_dynamic_start(bool, Unsigned first, Unsigned last, Unsigned step, Unsigned turn,
                                              Unsigned* from, Unsigned* to) {
    const Range range{long(first), long(last), long(step), long(turn)};
    return start(range, reinterpret_cast<long*>(from), reinterpret_cast<long*>(to));
}
bool GOMP_loop_ull_nonmonotonic_dynamic_next(Unsigned* from, Unsigned* to) {
    return teams.back().take(reinterpret_cast<long*>(from), reinterpret_cast<long*>(to));
}
void GOMP_loop_end() { GOMP_barrier(); }
void GOMP_loop_end_nowait() {}

int omp_get_max_threads() { return most(); }
int omp_get_num_threads() { return teams.empty() ? 1 : teams.back().team->size; }
int omp_get_thread_num() { return teams.empty() ? 0 : teams.back().number; }
int omp_in_parallel() { return in_parallel(); }
void omp_set_num_threads(int threads) { wanted = threads; }

}  // extern "C"
#pragma GCC visibility pop
