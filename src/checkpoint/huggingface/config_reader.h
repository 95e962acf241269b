// Fields of a JSON object that others wrote, checked one by one.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace meshtrain {

// Null counts as left out unless it is asked for, and in a flag as false. Throws UserError naming the file, the
// field and its value. The object and the path must outlive it.
class HfFieldReader {
 public:
  // `inside`: the field that holds the object, for messages: "rope_scaling".
  HfFieldReader(const nlohmann::json& object, const std::string& path, std::string inside = "");

  bool has(const char* key) const;
  bool says_null(const char* key) const;
  const nlohmann::json& get(const char* key) const;  // must be there

  // 1 to 2^31 - 1.
  std::int64_t size(const char* key, std::int64_t otherwise) const;
  double number(const char* key, double otherwise) const;
  bool flag(const char* key, bool otherwise) const;
  std::string text(const char* key, const std::string& otherwise) const;

  std::int64_t required_size(const char* key) const;
  double required_number(const char* key) const;

  // Refuse what is not supported: `why` continues "hidden_act = "relu": ".
  void require_text(const char* key, const std::string& otherwise,
                    std::initializer_list<std::string_view> known, std::string_view why) const;
  void require_flag(const char* key, bool otherwise, bool value, std::string_view why) const;
  void require_absent(const char* key, std::string_view why) const;

  [[noreturn]] void refuse(const char* key, std::string_view why) const;

 private:
  std::string name_of(const char* key) const;
  void require_there(const char* key) const;

  const nlohmann::json& object_;
  const std::string& path_;
  std::string inside_;
};

}  // namespace meshtrain
