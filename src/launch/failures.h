// What became of ranks that failed, and which of them is told to the user.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

namespace meshtrain {

enum class FailureKind : std::uint8_t {
  kUser,        // UserError
  kRun,         // RunError
  kAgreed,      // AgreedError: every rank's
  kLostOthers,  // CommError: usually another rank's failure, as seen from here
  kUnexpected,  // any other exception
  kEnded,       // a signal or exit(); the message names the rank itself
};

struct RankFailure {
  int rank = 0;
  FailureKind kind = FailureKind::kUnexpected;
  std::string message;
  int signal = 0;  // kEnded: what killed it, if a signal did
};

// What the other ranks are told.
std::string reason_for_others(const RankFailure& failure);

RankFailure describe_failure(int rank, const std::exception_ptr& failure);

// The failure that caused the others: the first that is no CommError, else the first. `failures`: in the order
// in which they happened, not empty.
const RankFailure& cause_of(const std::vector<RankFailure>& failures);

// What the user is told of it: "rank 3: " stands before the message unless all `ranks` say the same or agreed
// on it; before a UserError only where another rank has another.
std::string message_of_cause(const std::vector<RankFailure>& failures, int ranks);

// Throws that cause with that message, as UserError, RunError or std::runtime_error.
[[noreturn]] void throw_cause(const std::vector<RankFailure>& failures, int ranks);

}  // namespace meshtrain
