// Small agreements between ranks outside training steps. All are collective calls.
#pragma once

#include <string>

#include "comm/communicator.h"

namespace meshtrain {

// Whether any rank says so.
bool any_rank(Communicator& ranks, bool says_so);
// Rank 0's text.
std::string text_of_first(Communicator& ranks, const std::string& text);
double sum_of_ranks(Communicator& ranks, double value);

}  // namespace meshtrain
