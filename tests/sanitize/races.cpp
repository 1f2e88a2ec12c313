// Runs loops that a team shares: without a race, or with the one that the argument names. Run by
// tests/sanitize/test_teams.py.
#include <omp.h>

#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

static constexpr int count = 1000;
static std::vector<long> a(count), b(count);

// A member reads what another has written before a barrier, or in an earlier loop: there is no race.
static long in_order() {
    long sum = 0;
#pragma omp parallel for schedule(static)
    for (int i = 0; i < count; i++) a[i] = i;
#pragma omp parallel
    {
#pragma omp for schedule(dynamic, 7)
        for (int i = 0; i < count; i++) b[count - 1 - i] = a[i];
#pragma omp for schedule(static)
        for (int i = 0; i < count; i++) a[i] = b[i];
#pragma omp critical
        a[0]++;
    }
#pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < count / 100; i++) {
#pragma omp parallel for schedule(dynamic)
        for (int j = 100 * i + 99; j >= 100 * i; j--) b[j] = a[j];
    }
#pragma omp parallel for reduction(+ : sum)
    for (int i = 0; i < count; i++) sum += b[i];
    return sum;
}

static void neighbours() {
#pragma omp parallel for schedule(static)
    for (int i = 0; i < count - 1; i++) a[i] = a[i + 1];
}

static void turns() {
#pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < count; i++) a[i / 2]++;
}

static void no_barrier() {
#pragma omp parallel
    {
#pragma omp for schedule(static) nowait
        for (int i = 0; i < count; i++) a[i] = i;
#pragma omp for schedule(static)
        for (int i = 0; i < count; i++) b[i] = a[count - 1 - i];
    }
}

int main(int, char** arguments) {
    const std::string race = arguments[1];
    if (race == "neighbours") neighbours();
    if (race == "turns") turns();
    if (race == "no barrier") no_barrier();
    const long expected = count * (count - 1) / 2 + omp_get_max_threads(), sum = in_order();
    std::printf("%d threads, %s\n", omp_get_max_threads(), sum == expected ? "fine" : "wrong");
}
