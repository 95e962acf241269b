// Standard input, output and error of this process.
#pragma once

namespace meshtrain {

// Puts /dev/null in the place of those that the parent closed, so that no file opened later takes their number.
// Before anything is opened.
void open_closed_streams();

// Returns once all that was printed to standard output has been written. Throws RunError when it could not be:
// a full disk, or a reader that went away.
void flush_standard_output();

}  // namespace meshtrain
