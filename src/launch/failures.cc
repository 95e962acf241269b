#include "launch/failures.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "base/error.h"
#include "base/system_failure.h"
#include "comm/agreement.h"
#include "comm/communicator.h"

namespace meshtrain {

RankFailure describe_failure(int rank, const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const UserError& error) {
    return {rank, FailureKind::kUser, error.what(), 0};
  } catch (const CommError& error) {
    return {rank, FailureKind::kLostOthers, error.what(), 0};
  } catch (const AgreedError& error) {
    return {rank, FailureKind::kAgreed, error.what(), 0};
  } catch (const RunError& error) {
    return {rank, FailureKind::kRun, error.what(), 0};
  } catch (const std::exception& error) {
    const std::string refused = system_failure(error);
    if (!refused.empty()) return {rank, FailureKind::kRun, refused, 0};
    return {rank, FailureKind::kUnexpected, error.what(), 0};
  } catch (...) {
    return {rank, FailureKind::kUnexpected, "an exception that is none of the standard library's", 0};
  }
}

std::string reason_for_others(const RankFailure& failure) {
  return fmt::format("rank {} failed: {}", failure.rank, failure.message);
}

const RankFailure& cause_of(const std::vector<RankFailure>& failures) {
  check(!failures.empty(), "the cause of no failure");
  const auto cause = std::find_if(failures.begin(), failures.end(),
                                  [](const RankFailure& f) { return f.kind != FailureKind::kLostOthers; });
  return cause != failures.end() ? *cause : failures.front();
}

std::string message_of_cause(const std::vector<RankFailure>& failures, int ranks) {
  const RankFailure& cause = cause_of(failures);
  const auto same = std::count_if(failures.begin(), failures.end(),
                                  [&](const RankFailure& f) { return f.message == cause.message; });
  const bool other_user_error = std::any_of(failures.begin(), failures.end(), [&](const RankFailure& f) {
    return f.kind == FailureKind::kUser && f.message != cause.message;
  });
  const bool named = [&] {
    switch (cause.kind) {
      case FailureKind::kEnded:
      case FailureKind::kAgreed:
        return false;
      case FailureKind::kUser:
        return other_user_error;
      case FailureKind::kRun:
      case FailureKind::kLostOthers:
      case FailureKind::kUnexpected:
        break;
    }
    return same < ranks;
  }();
  return named ? fmt::format("rank {}: {}", cause.rank, cause.message) : cause.message;
}

void throw_cause(const std::vector<RankFailure>& failures, int ranks) {
  const std::string message = message_of_cause(failures, ranks);
  switch (cause_of(failures).kind) {
    case FailureKind::kUser:
      throw UserError(message);
    case FailureKind::kUnexpected:
      throw std::runtime_error(message);
    case FailureKind::kRun:
    case FailureKind::kAgreed:
    case FailureKind::kLostOthers:
    case FailureKind::kEnded:
      break;
  }
  throw RunError(message);
}

}  // namespace meshtrain
