// A file that is mapped into memory ends the process where it is damaged or cut off: by a signal, in the midst of the
// library that reads it; and there are libraries that never come back from some damage. Here both become one line,
// which names the file, and exit status 1.
#pragma once

#include <string_view>

namespace engine {

// Until done_reading(), a fault of the calling thread is the file's. file: as messages name it, such as "LMDB
// train_db"; key: of the item that is read; empty for none; seconds: of the processor's time that it may take, 0: any.
// The first call installs the handlers; faults of other threads, and at other times, go to those that were there
// before.
void reading(std::string_view file, std::string_view key, int seconds = 0);
void done_reading();

// Where there are several processes. name: how this one's line begins, such as "[rank 3] ". pipe: the line is written
// there, for who ends all of them; should that not happen within a second, the handler speaks itself. It asks by
// writing "fail" to this socket; after the answer "late" another process has told what is wrong, and this one ends
// without a word. -1: there is none.
void speak_as(std::string_view name, int pipe, int socket);

// Whether what C libraries write to stderr waits: a library that finds the damage by an assertion says so before it
// aborts, in words that name no file. They are lost then; in all other cases they come once this is off again.
void hold_stderr(bool on);

}  // namespace engine
