#include "fault.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <memory>
#include <mutex>

namespace engine {
namespace {

// The signals of a file that is cut off; of a page that points outside of it; of a damaged header; of an assertion of
// the library itself; and of a library that never ends.
constexpr int signals[] = {SIGBUS, SIGSEGV, SIGFPE, SIGABRT, SIGXCPU};
struct sigaction former[std::size(signals)];

constexpr size_t file_bytes = 2048, key_bytes = 1024;

struct Place {
    char file[file_bytes], key[key_bytes];
    size_t file_size, key_size;
};

// What the handler reads. It is in the thread's static block, because the handler must not allocate.
[[gnu::tls_model("initial-exec")]] thread_local const Place* current = nullptr;

char own_name[32];
size_t own_name_size = 0;
std::atomic<int> spokesman{-1}, watchdog{-1};  // a pipe, a socket
std::atomic<bool> is_ending{false};

// A line that is written by functions that a signal handler may call.
class Line {
public:
    void add(const char* text, size_t size) {
        size = size < sizeof(text_) - size_ ? size : sizeof(text_) - size_;
        std::memcpy(text_ + size_, text, size);
        size_ += size;
    }

    void add(const char* text) { add(text, std::strlen(text)); }

    // Adds bytes of a file; those that are no plain characters are escaped.
    void add_escaped(const char* text, size_t size) {
        for (size_t i = 0; i < size; ++i) {
            const auto byte = static_cast<unsigned char>(text[i]);
            const char escape[] = {'\\', 'x', "0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]};
            const bool plain = byte >= 0x20 && byte < 0x7f;
            add(plain ? text + i : escape, plain ? 1 : sizeof(escape));
        }
    }

    void write_to(int descriptor) const {
        for (size_t done = 0; done < size_;) {
            const ssize_t written = write(descriptor, text_ + done, size_ - done);
            if (written <= 0) return;
            done += size_t(written);
        }
    }

private:
    char text_[file_bytes + 4 * key_bytes + 128];
    size_t size_ = 0;
};

constexpr int answer_milliseconds = 1000;

// Asks the watchdog, and tells whether another process has told what is wrong.
bool is_late() {
    constexpr char question[] = "fail\n", late[] = "late";
    char answer[sizeof(late)] = {};
    pollfd asked{watchdog, POLLIN, 0};
    return asked.fd >= 0 && send(asked.fd, question, std::strlen(question), MSG_NOSIGNAL) > 0 &&
           poll(&asked, 1, answer_milliseconds) > 0 && recv(asked.fd, answer, std::strlen(late), 0) > 0 &&
           std::strcmp(answer, late) == 0;
}

[[noreturn]] void end(const Place& place) {
    while (is_ending.exchange(true)) pause();  // another thread has had a fault and ends the process
    Line line;
    if (isatty(STDERR_FILENO)) line.add("\r\x1b[K");  // clears a progress bar
    line.add("engine: ");
    line.add(own_name, own_name_size);
    line.add(place.file, place.file_size);
    if (place.key_size) {
        line.add(": key '");
        line.add_escaped(place.key, place.key_size);
        line.add("'");
    }
    line.add(": the file is damaged, or has been cut off; copy it again\n");
    if (spokesman >= 0) {
        line.write_to(spokesman);
        sleep(1);
    }
    if (is_late())
        sleep(1);  // the launcher ends all once this process has ended, and the first may not have written its line yet
    else
        line.write_to(STDERR_FILENO);
    _exit(1);
}

// Does what would happen without this handler.
void pass_on(int number, siginfo_t* info, void* context) {
    size_t i = 0;
    while (signals[i] != number) ++i;
    const struct sigaction& action = former[i];
    const bool was_sent = info->si_code <= 0;  // by kill(), raise() or abort(); else the instruction will fail again
    if (action.sa_flags & SA_SIGINFO) {
        action.sa_sigaction(number, info, context);
    } else if (action.sa_handler == SIG_IGN && was_sent) {
        return;
    } else if (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) {
        sigaction(number, &action, nullptr);
        if (was_sent) raise(number);
    } else {
        action.sa_handler(number);
    }
}

void handle(int number, siginfo_t* info, void* context) {
    const bool own = number == SIGXCPU   ? info->si_code == SI_TIMER
                     : number == SIGABRT ? info->si_pid == getpid()
                                         : info->si_code > 0;
    if (current && own) end(*current);
    pass_on(number, info, context);
}

void install() {
    struct sigaction action{};
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < std::size(signals); ++i) sigaction(signals[i], &action, &former[i]);
}

// Sends SIGXCPU to the thread that made it, after some of the processor's time.
class Timer {
public:
    Timer() {
        sigevent event{};
        event.sigev_notify = SIGEV_THREAD_ID;
        event.sigev_signo = SIGXCPU;
        event._sigev_un._tid = pid_t(syscall(SYS_gettid));
        is_there_ = timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer_) == 0;
    }
    ~Timer() {
        if (is_there_) timer_delete(timer_);
    }
    Timer(const Timer&) = delete;
    Timer& operator=(const Timer&) = delete;

    // seconds: of the thread's processor time; 0: stops the timer.
    void set(int seconds) const {
        const itimerspec when{{0, 0}, {seconds, 0}};
        if (is_there_) timer_settime(timer_, 0, &when, nullptr);
    }

private:
    timer_t timer_{};
    bool is_there_;
};

// The timer of a thread. A forked child has its parent's memory but none of its timers, so it makes its own.
struct OwnTimer {
    std::unique_ptr<Timer> timer;
    pid_t owner = 0;
    bool runs = false;
};

thread_local OwnTimer own_timer;

void set_timer(int seconds) {
    if (own_timer.owner != getpid()) {
        (void)own_timer.timer.release();
        own_timer.timer = std::make_unique<Timer>();
        own_timer.owner = getpid();
    }
    own_timer.timer->set(seconds);
    own_timer.runs = seconds > 0;
}

}  // namespace

void reading(std::string_view file, std::string_view key, int seconds) {
    static std::once_flag installed;
    std::call_once(installed, install);
    thread_local const auto place = std::make_unique<Place>();
    place->file_size = file.copy(place->file, file_bytes);
    place->key_size = key.copy(place->key, key_bytes);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    current = place.get();
    if (seconds) set_timer(seconds);
}

void done_reading() {
    if (own_timer.runs) set_timer(0);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    current = nullptr;
}

void speak_as(std::string_view name, int pipe, int socket) {
    own_name_size = name.copy(own_name, sizeof(own_name));
    spokesman = pipe;
    watchdog = socket;
}

void hold_stderr(bool on) {
    static char buffer[BUFSIZ];
    std::fflush(stderr);
    std::setvbuf(stderr, on ? buffer : nullptr, on ? _IOFBF : _IONBF, on ? sizeof(buffer) : 0);
}

}  // namespace engine
