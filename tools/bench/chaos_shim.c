/* Loaded before libc into the ranks of tools/bench/chaos.py: a clock that can be stepped, and a disk that is slow.
 *
 * CHAOS_CLOCK names a file that holds a double: seconds that are added to the time of day, but not to the monotonic
 * clock. CHAOS_SLOW_DISK holds the milliseconds that each fsync and each write to a regular file take longer. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile double* step;
static long slow_ms;

__attribute__((constructor)) static void begin(void) {
    const char* file = getenv("CHAOS_CLOCK");
    const int fd = file ? open(file, O_RDONLY) : -1;
    if (fd >= 0) {
        void* mapped = mmap(NULL, sizeof(double), PROT_READ, MAP_SHARED, fd, 0);
        step = mapped == MAP_FAILED ? NULL : mapped;
        close(fd);
    }
    const char* slow = getenv("CHAOS_SLOW_DISK");
    slow_ms = slow ? atol(slow) : 0;
}

static void wait_for_disk(int fd) {
    struct stat status;
    if (slow_ms > 0 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) {
        usleep(1000 * slow_ms);
    }
}

int clock_gettime(clockid_t clock, struct timespec* now) {
    static int (*real)(clockid_t, struct timespec*);
    if (!real) {
        real = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
    }
    const int status = real(clock, now);
    if (status == 0 && step && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        now->tv_sec += (time_t)*step;
    }
    return status;
}

int gettimeofday(struct timeval* restrict now, void* restrict zone) {
    (void)zone;
    struct timespec precise;
    const int status = clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return status;
}

time_t time(time_t* now) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now) {
        *now = precise.tv_sec;
    }
    return precise.tv_sec;
}

ssize_t write(int fd, const void* bytes, size_t count) {
    static ssize_t (*real)(int, const void*, size_t);
    if (!real) {
        real = (ssize_t (*)(int, const void*, size_t))dlsym(RTLD_NEXT, "write");
    }
    wait_for_disk(fd);
    return real(fd, bytes, count);
}

int fsync(int fd) {
    static int (*real)(int);
    if (!real) {
        real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    }
    wait_for_disk(fd);
    return real(fd);
}
