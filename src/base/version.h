#pragma once

namespace meshtrain {

// "0.1.0"
const char* version();

}  // namespace meshtrain
