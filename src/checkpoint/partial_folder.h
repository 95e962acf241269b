// A folder that appears whole or not at all: written inside OUT.partial, and moved from there.
#pragma once

#include <filesystem>
#include <string>

#include "checkpoint/file_writer.h"

namespace meshtrain {

// Throws UserError naming --out unless `out` is not there or an empty folder.
void check_new_folder(const std::string& out);

class PartialFolder {
 public:
  // Makes OUT.partial. One that was left by a process that was killed is removed before, anything else that has
  // its name is a UserError; so is an `out` that check_new_folder() refuses or that nothing can be renamed to.
  explicit PartialFolder(const std::string& out);
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;
  // Removes OUT.partial with what is left in it.
  ~PartialFolder();

  // The folder to write, which is there and empty.
  std::filesystem::path contents() const { return partial_ / "contents"; }
  // Everything in it must be on the disk: gives it the name OUT.
  void commit(const WriteHook& hook = {});

 private:
  std::filesystem::path out_;  // without links, and without a slash at its end
  std::filesystem::path partial_;
};

}  // namespace meshtrain
