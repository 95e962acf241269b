// Exceptions of the standard library that are the system's word, not a mistake of ours.
#pragma once

#include <exception>
#include <string>

namespace meshtrain {

// What the system refused, as a message says it: memory, a thread, a file or a folder. Empty for exceptions
// that only a mistake of ours throws.
std::string system_failure(const std::exception& error);

}  // namespace meshtrain
