// What meshtrain ckpt says of a checkpoint, for people and for programs.
#include <gtest/gtest.h>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/xxh3.h"
#include "program.h"

namespace meshtrain {
namespace {

class Ckpt : public ProgramTest {
 protected:
  Ckpt() {
    write_config("a.toml", "llama-tiny");
    succeed({"train", "a.toml", "--stop-at-step", "2", "--ranks", "2", "-s", "mesh.tp=2"});
  }
  const std::string checkpoint_ = "run/checkpoints/" + checkpoint_name(2);
};

TEST_F(Ckpt, InspectTellsWhatIsInTheManifest) {
  const nlohmann::json manifest = read_json(checkpoint_ + "/manifest.json");
  const nlohmann::json told = succeed_with_json({"ckpt", "inspect", "run", "--json"});
  EXPECT_EQ(told.at("checkpoint"), checkpoint_);
  EXPECT_EQ(told.at("step"), 2);
  EXPECT_EQ(told.at("mesh"), nlohmann::json({{"ranks", 2},
                                             {"dp", 1},
                                             {"zero", 0},
                                             {"tp", 2},
                                             {"sequence_parallel", true},
                                             {"pp", 1},
                                             {"schedule", "1f1b"},
                                             {"virtual_stages", 1}}));
  ASSERT_EQ(told.at("tensors").size(), manifest.at("tensors").size());
  for (const nlohmann::json& tensor : told.at("tensors")) {
    const nlohmann::json& listed = manifest.at("tensors").at(tensor.at("name").get<std::string>());
    EXPECT_EQ(tensor.at("shape"), listed.at("shape"));
    EXPECT_EQ(tensor.at("pieces"), listed.at("pieces").size());
  }
  EXPECT_EQ(told.at("files").size(), manifest.at("shards").size());
  EXPECT_EQ(told.at("state").at("position"), 8);
}

TEST_F(Ckpt, DigestIsWhatTheDocumentSays) {
  const std::string text = succeed({"ckpt", "digest", "run"}).out;
  const std::size_t total = text.find("total ");
  EXPECT_EQ(text.substr(total), "total " + hash_of(std::string_view(text).substr(0, total)) + "\n");
  const std::string state = R"({"position":8,"step":2,"updates":2})";
  expect_contains(text, {"state " + state + " " + hash_of(std::string_view(state)) + "\n"});
  const nlohmann::json told = succeed_with_json({"ckpt", "digest", "run", "--json"});
  EXPECT_EQ(told.at("state"), nlohmann::json::parse(state));
  EXPECT_EQ(text.substr(total), "total " + told.at("total").get<std::string>() + "\n");
  for (const auto& [name, hash] : told.at("tensors").items()) {
    expect_contains(text, {"] " + hash.get<std::string>() + "\n", name + " F32 ["});
  }
}

TEST_F(Ckpt, VerifyAnswersInJsonWhateverIsDamaged) {
  const nlohmann::json whole = succeed_with_json({"ckpt", "verify", "run", "--json"});
  EXPECT_EQ(whole, nlohmann::json(
                       {{"checkpoint", checkpoint_}, {"whole", true}, {"damages", nlohmann::json::array()}}));
  const std::string manifest = checkpoint_ + "/manifest.json";
  std::string text = read(manifest);
  text[text.find("adamw") + 1] = '\xE9';  // no UTF-8, which JSON is not without
  write(manifest, text);
  const Outcome outcome = run({"ckpt", "verify", "run", "--json"});
  EXPECT_EQ(outcome.status, 1) << outcome;
  const nlohmann::json answer = nlohmann::json::parse(outcome.out);
  EXPECT_FALSE(answer.at("whole"));
  expect_contains(answer.at("damages").at(0).get<std::string>(), {manifest, "damaged", "UTF-8"});
}

}  // namespace
}  // namespace meshtrain
