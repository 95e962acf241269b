// "~" at the start of a path.
#pragma once

#include <string>

namespace meshtrain {

// The path with "~" and "~USER" at its start replaced by the home folder, as a shell does: HOME, else what the
// system's list of users says. Other paths as they are: a file of that name is ./~. Throws UserError where no
// home folder is known.
std::string expand_home(const std::string& path);

}  // namespace meshtrain
