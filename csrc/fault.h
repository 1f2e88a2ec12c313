// Turns the faults that damaged files cause into one line, which names the file, and exit status 1. A file that is
// mapped into memory and is damaged or cut off ends the process by a signal, inside the library that reads it; and some
// damage makes a library run for ever.
#pragma once

#include <string_view>

namespace engine {

// Makes faults of the calling thread count as the file's until done_reading(). file: its name for messages, such as
// "LMDB train_db"; key: that of the item that is read, or empty; seconds: how much of the processor's time reading may
// take; 0: any. The first call installs signal handlers; faults of other threads, and at other times, go to the former
// handlers.
void reading(std::string_view file, std::string_view key, int seconds = 0);
void done_reading();

// Sets how the line is written if there are several processes. name: how the line of this one begins, such as "[rank 3]
// ". pipe: where the line is written, for the process that ends all of them; if that does not happen within a second,
// the handler writes the line to stderr itself. socket: where it asks before that, by writing "fail"; if the answer is
// "late", another process has told what is wrong, and this one ends without a line. -1: there is none.
void speak_as(std::string_view name, int pipe, int socket);

// Holds back what C libraries write to stderr. A library that finds damage by an assertion writes that before it
// aborts, in words that name no file: these are lost then. In all other cases they are written when this is off again.
void hold_stderr(bool on);

}  // namespace engine
