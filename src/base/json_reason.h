// Why a text is not the JSON that it should be, for error messages.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace meshtrain {

// "line 3, column 7: syntax error …", or what is missing in the value; at most some 140 characters of
// UTF-8. (The library's own text begins with its name for the exception and may end with all that was read.)
std::string json_reason(const nlohmann::json::exception& error);

}  // namespace meshtrain
