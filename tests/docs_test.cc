// The documents name only what is there: files, commands, config keys, messages.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

const fs::path kRoot = MESHTRAIN_SOURCE_DIR;

std::string read(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Every .md of the repository.
std::vector<fs::path> documents() {
  std::vector<fs::path> found;
  for (fs::recursive_directory_iterator entry(kRoot), end; entry != end; ++entry) {
    const std::string name = entry->path().filename().string();
    const bool is_output = entry.depth() == 0 && (name == "build" || name == "runs" || name == "shared");
    if (entry->is_directory() && (is_output || name.starts_with('.'))) entry.disable_recursion_pending();
    if (entry->path().extension() == ".md") found.push_back(entry->path());
  }
  return found;
}

std::vector<std::smatch> matches(const std::string& text, const std::regex& pattern) {
  return {std::sregex_iterator(text.begin(), text.end(), pattern), std::sregex_iterator()};
}

// What stands in backticks, inline and fenced.
const std::regex kCode("```[^`]*```|`[^`]*`");

std::string code_of(const std::string& text) {
  std::string code;
  for (const std::smatch& match : matches(text, kCode)) code += match.str() + '\n';
  return code;
}

std::string output_of(const std::string& command) {
  std::string output;
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return output;
  std::array<char, 4096> buffer;
  for (std::size_t n = 0; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    output.append(buffer.data(), n);
  }
  EXPECT_EQ(pclose(pipe), 0) << command;
  return output;
}

// The subcommands that `meshtrain COMMAND --help` lists; COMMAND may be empty.
std::set<std::string> subcommands(const std::string& command) {
  const std::string help = output_of(std::string(MESHTRAIN_BINARY) + " " + command + " --help");
  std::set<std::string> names;
  const std::size_t begin = help.find("Subcommands:");
  if (begin == std::string::npos) return names;
  const std::string list = help.substr(begin);
  static const std::regex kName(R"(\n  ([a-z]+) )");
  for (const std::smatch& match : matches(list, kName)) names.insert(match[1]);
  return names;
}

TEST(Docs, LinksLeadToFiles) {
  static const std::regex kLink(R"(\]\(([^)\s#]+)[^)]*\))");
  int seen = 0;
  for (const fs::path& document : documents()) {
    const std::string prose = std::regex_replace(read(document), kCode, "");
    for (const std::smatch& match : matches(prose, kLink)) {
      const std::string target = match[1];
      if (target.find("://") != std::string::npos || target.starts_with("mailto:")) continue;
      ++seen;
      EXPECT_TRUE(fs::exists(document.parent_path() / target)) << document << " links to " << target;
    }
  }
  EXPECT_GT(seen, 50);
}

TEST(Docs, CommandsExist) {
  const std::set<std::string> commands = subcommands("");
  const std::set<std::string> benches = subcommands("bench");
  const std::set<std::string> checkpoints = subcommands("ckpt");
  ASSERT_TRUE(commands.contains("train") && benches.contains("matmul") && checkpoints.contains("export"));
  static const std::regex kCommand(R"(\bmeshtrain ([a-z]+)(?: ([a-z]+))?)");
  std::set<std::string> shown;
  for (const fs::path& document : documents()) {
    const std::string code = code_of(read(document));
    for (const std::smatch& match : matches(code, kCommand)) {
      EXPECT_TRUE(commands.contains(match[1])) << document << ": " << match.str();
      if (match[1] == "bench") {
        EXPECT_TRUE(benches.contains(match[2])) << document << ": " << match.str();
      }
      if (match[1] == "ckpt") {
        EXPECT_TRUE(checkpoints.contains(match[2])) << document << ": " << match.str();
      }
      if (document == kRoot / "README.md") shown.insert(match[1]);
    }
  }
  EXPECT_EQ(shown, commands) << "README.md shows every command";
}

TEST(Docs, OptionsExist) {
  static const std::regex kLine(R"(\bmeshtrain ((?:(?:bench|ckpt) )?[a-z]+)\b([^\n`]*))");
  static const std::regex kOption(R"((?:^|\s|\[)(--[a-z][a-z-]*))");
  int seen = 0;
  for (const fs::path& document : documents()) {
    const std::string code = code_of(read(document));
    for (const std::smatch& line : matches(code, kLine)) {
      const std::string arguments = line[2];
      const std::vector<std::smatch> options = matches(arguments, kOption);
      if (options.empty()) continue;
      const std::string help = output_of(std::string(MESHTRAIN_BINARY) + " " + line[1].str() + " --help");
      for (const std::smatch& option : options) {
        ++seen;
        const std::regex whole(option[1].str() + "(?![a-z-])");
        EXPECT_TRUE(std::regex_search(help, whole)) << document << ": " << line.str();
      }
    }
  }
  EXPECT_GT(seen, 10);
}

TEST(Docs, ConfigKeysExist) {
  const std::string reference = read(kRoot / "docs/config.md");
  static const std::regex kRow(R"(\n(?:## \[(\w+)\]|\| `(\w+)` \|))");
  std::set<std::string> sections;
  std::set<std::string> keys;
  std::string section;
  for (const std::smatch& match : matches(reference, kRow)) {
    if (match[1].matched) {
      section = match[1];
      sections.insert(section);
    } else {
      keys.insert(section + "." + match[2].str());
    }
  }
  ASSERT_TRUE(keys.contains("train.steps"));

  // Not a member call, a path or a file name.
  static const std::regex kKey(R"((^|[^\w./-])(\w+)\.([a-z_]+)(?![\w(./]))");
  static const std::set<std::string> kExtensions = {"cc",   "h",           "md",  "json", "jsonl",
                                                    "toml", "safetensors", "bin", "idx"};
  int seen = 0;
  for (const fs::path& document : documents()) {
    const std::string code = code_of(read(document));
    for (const std::smatch& match : matches(code, kKey)) {
      if (!sections.contains(match[2]) || kExtensions.contains(match[3])) continue;
      ++seen;
      EXPECT_TRUE(keys.contains(match[2].str() + "." + match[3].str()))
          << document << ": " << match[2] << '.' << match[3];
    }
  }
  EXPECT_GT(seen, 20);
}

// What the sources say in string literals, joined where a line breaks them, with "…" for each value that is
// filled in.
std::string messages_of(const std::string& source) {
  static const std::regex kJoint(R"re("\s*\n\s*")re");
  static const std::regex kQuote(R"re(\\")re");
  static const std::regex kValue(R"re(\{[^{}\n"]*\})re");
  const std::string joined = std::regex_replace(source, kJoint, "");
  return std::regex_replace(std::regex_replace(joined, kQuote, "\""), kValue, "…");
}

TEST(Docs, ErrorsAreThoseOfTheSources) {
  std::string messages;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(kRoot / "src")) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && !name.ends_with("_test.cc")) messages += messages_of(read(entry.path()));
  }
  const std::string document = read(kRoot / "docs/errors.md");
  static const std::regex kRow(R"(\n\| `([^`]+)` \|)");
  int seen = 0;
  for (const std::smatch& row : matches(document, kRow)) {
    ++seen;
    EXPECT_NE(messages.find(row[1]), std::string::npos) << "no source says: " << row[1];
  }
  EXPECT_GT(seen, 60);
}

}  // namespace
