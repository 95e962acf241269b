// Config values from and to TOML, one overload a type.
#pragma once

#include <toml++/toml.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace meshtrain {

// As the right-hand side of a TOML assignment. Numbers have the fewest digits that read back to the same bits.
std::string quoted(std::string_view text);
std::string to_text(const std::string& value);
std::string to_text(std::int64_t value);
std::string to_text(std::uint64_t value);
std::string to_text(bool value);
std::string to_text(double value);
std::string to_text(const std::array<double, 2>& value);
std::string to_text(const std::vector<std::int64_t>& value);

// Stores the node's value in `out`; returns "" or what is wrong, e.g. `expects an integer, found the string
// "x"`.
std::string store(std::int64_t& out, const toml::node& node);
std::string store(std::uint64_t& out, const toml::node& node);
std::string store(bool& out, const toml::node& node);
std::string store(double& out, const toml::node& node);
std::string store(std::string& out, const toml::node& node);
std::string store(std::array<double, 2>& out, const toml::node& node);
std::string store(std::vector<std::int64_t>& out, const toml::node& node);

// An integer is a number too.
std::optional<double> number(const toml::node& node);

// "expects `expected`, found …".
std::string mismatch(std::string_view expected, const toml::node& node);

}  // namespace meshtrain
