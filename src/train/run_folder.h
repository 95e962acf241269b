// The folder that a run leaves behind.
#pragma once

#include <string>

namespace meshtrain {

// Whether `inner` lies in the folder `outer`, or is it.
bool lies_in(const std::string& inner, const std::string& outer);

// Whether metrics.jsonl, summary.json or checkpoints/ is in `dir`.
bool holds_run(const std::string& dir);

// Creates `dir`. When it already holds a run and `keep` is false, that run is renamed to the first free DIR.1,
// DIR.2, …; returns its new name, else "". Throws UserError when the folder cannot be made or written.
std::string prepare_run_folder(const std::string& dir, bool keep);

// Writes a small file whole or not at all. Throws RunError.
void write_whole_file(const std::string& path, const std::string& text);

// The checkpoint that a user means by `path`: as resolve_checkpoint(), and for a run folder whose
// checkpoint.dir is elsewhere the newest there. Throws UserError when there is none.
std::string find_checkpoint(const std::string& path);

}  // namespace meshtrain
