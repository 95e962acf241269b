#include "data/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"

namespace meshtrain {
namespace {

constexpr std::uint32_t kMatchLimit = 100'000'000;
constexpr std::size_t kJitStackBytes = 16U << 20U;

std::string pcre_message(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

Regex::Regex(std::string_view pcre, std::uint32_t options, std::string_view shown, const std::string& where) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pcre.data()), pcre.size(), options | PCRE2_UTF,
                                   &error, &offset, context.get());
  if (code == nullptr) {
    throw_user_error("{}: the regular expression \"{}\" cannot be compiled: {} (near \"{}\")", where, shown,
                     pcre_message(error), pcre.substr(std::min(offset, pcre.size())));
  }
  code_ = std::shared_ptr<void>(code, [](void* p) { pcre2_code_free(static_cast<pcre2_code*>(p)); });
  // Without a JIT (another processor, or one forbidden by the system) the interpreter gives the same matches.
  (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
}

Regex Regex::from_oniguruma(std::string_view pattern, const std::string& where) {
  return Regex(oniguruma_to_pcre(pattern, where), PCRE2_UCP, pattern, where);
}

Regex Regex::literal(std::string_view text, const std::string& where) {
  return Regex(text, PCRE2_LITERAL, text, where);
}

RegexMatcher::RegexMatcher(const Regex& regex)
    : code_(regex.code_),
      match_data_(pcre2_match_data_create(1, nullptr),
                  [](void* p) { pcre2_match_data_free(static_cast<pcre2_match_data*>(p)); }),
      match_context_(pcre2_match_context_create(nullptr),
                     [](void* p) { pcre2_match_context_free(static_cast<pcre2_match_context*>(p)); }),
      jit_stack_(pcre2_jit_stack_create(32U << 10U, kJitStackBytes, nullptr),
                 [](void* p) { pcre2_jit_stack_free(static_cast<pcre2_jit_stack*>(p)); }) {
  auto* context = static_cast<pcre2_match_context*>(match_context_.get());
  pcre2_set_match_limit(context, kMatchLimit);
  pcre2_jit_stack_assign(context, nullptr, jit_stack_.get());
}

bool RegexMatcher::find(std::string_view text, std::size_t from, TextRange& match) {
  auto* data = static_cast<pcre2_match_data*>(match_data_.get());
  const int count = pcre2_match(
      static_cast<const pcre2_code*>(code_.get()), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
      PCRE2_NO_UTF_CHECK, data, static_cast<pcre2_match_context*>(match_context_.get()));
  if (count == PCRE2_ERROR_NOMATCH) return false;
  if (count < 0) {
    throw_run_error("the tokenizer's regular expression failed at byte {} of a text of {} bytes: {}", from,
                    text.size(), pcre_message(count));
  }
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(data);
  match = {offsets[0], offsets[1]};
  return true;
}

}  // namespace meshtrain
