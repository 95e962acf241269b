// Standard input, output and error of this process.
#pragma once

namespace meshtrain {

// Puts /dev/null in the place of those that the parent closed, so that no file opened later takes their number.
// Before anything is opened.
void open_closed_streams();

// Returns once all that was printed to standard output has been written. Throws RunError when it could not be,
// as on a full disk, and std::system_error (broken_pipe) when its reader went away, as in `… | head`.
void flush_standard_output();

// Ends this process as programs end whose reader went away: by SIGPIPE, even where that is ignored.
[[noreturn]] void end_by_closed_pipe();

}  // namespace meshtrain
