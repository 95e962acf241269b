// Messages about keys that do not exist, or stand in the wrong place.
#pragma once

#include <string>
#include <string_view>

namespace meshtrain {

// What a name stands for, as a key of another section or another program's name for one. "optimizer.lr";
// "there are optimizer.schedule and mesh.schedule"; a sentence without its full stop; empty where nothing is
// known.
std::string meaning_of_name(std::string_view name);

// Whether what meaning_of_name() gives is one key.
bool is_one_key(std::string_view meaning);
// The key that it is about, the first of several; empty where it says why there is none.
std::string subject_of(std::string_view meaning);

// Each throws UserError that begins with `origin`: where the name was said.
[[noreturn]] void throw_unknown_key(std::string_view origin, std::string_view section, std::string_view key);
// `key`: the one that was said in it; empty where there is none.
[[noreturn]] void throw_unknown_section(std::string_view origin, std::string_view section,
                                        std::string_view key);
// The -s override `text` has no value, no '=' or no section.
[[noreturn]] void throw_bad_override(std::string_view text);

}  // namespace meshtrain
