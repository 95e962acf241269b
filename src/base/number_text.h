// Floating-point numbers as text that loses nothing.
#pragma once

#include <string>

namespace meshtrain {

// The fewest digits that read back to the same bits, always with a point or an exponent so that a reader of
// TOML, JSON or Python takes it for a floating-point number: "0.1", "2.0", "-0.0", "1e-05", "inf", "nan".
std::string number_text(double value);

// For texts: hardware gives some values that are not a number a sign, which says nothing.
double without_sign_of_nan(double value);

}  // namespace meshtrain
