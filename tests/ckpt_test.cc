// `meshtrain ckpt inspect`, `digest` and `verify`: what they say of a run's checkpoints.
#include <gtest/gtest.h>

#include <algorithm>

#include "checkpoint/xxh3.h"
#include "program.h"

namespace meshtrain {
namespace {

class Ckpt : public ProgramTest {
 protected:
  Ckpt() { write_config("a.toml", "llama-tiny"); }

  void train(const std::string& folder, const Arguments& more = {}) const {
    succeed(Arguments{"train", "a.toml", "--stop-at-step", "3"} + set({"output.dir=" + folder}) + more);
  }
};

TEST_F(Ckpt, InspectSaysWhatIsThereAndWhoWroteIt) {
  train("run");
  const std::string checkpoint = "run/checkpoints/step-00000003";
  const Outcome text = succeed({"ckpt", "inspect", "run", "--all"});
  expect_contains(text.out, {checkpoint + ": step 3, ", " in 2 files",
                             "written by 1 rank: dp=1 zero=0 tp=1 sequence_parallel=true pp=1", "position: 12",
                             "optimizer: adamw", "embed.tokens.m", "[64,192]", "optimizer.safetensors"});
  const nlohmann::json json = succeed_with_json({"ckpt", "inspect", checkpoint, "--json"});
  EXPECT_EQ(json["checkpoint"], checkpoint);
  EXPECT_EQ(json["step"], 3);
  EXPECT_EQ(json["state"]["position"], 12);  // 3 steps of 4 samples
  EXPECT_EQ(json["mesh"]["ranks"], 1);
  const std::int64_t parameters = succeed_with_json({"plan", "a.toml", "--json"})["parameters"];
  EXPECT_EQ(json["parameters"], parameters);
  // Master, m and v of each parameter.
  std::int64_t elements = 0;
  for (const nlohmann::json& tensor : json["tensors"]) {
    EXPECT_EQ(tensor["dtype"], "F32");
    std::int64_t of_tensor = 1;
    for (const std::int64_t dim : tensor["shape"]) of_tensor *= dim;
    elements += of_tensor;
  }
  EXPECT_EQ(elements, 3 * parameters);
  std::uintmax_t bytes = 0;
  for (const nlohmann::json& file : json["files"]) {
    EXPECT_EQ(file["bytes"], fs::file_size(path(checkpoint + "/" + file["name"].get<std::string>())));
    bytes += file["bytes"].get<std::uintmax_t>();
  }
  EXPECT_EQ(json["bytes"], bytes);
}

TEST_F(Ckpt, IsNoConfig) {
  train("run");
  const Outcome outcome = run({"train", "run/checkpoints/step-00000003"});
  EXPECT_EQ(outcome.status, 2) << outcome;
  expect_contains(outcome.err,
                  {"is a checkpoint", "--resume-from run/checkpoints/step-00000003", "model.from"});
}

TEST_F(Ckpt, InspectNamesTheMesh) {
  train("run", {"--ranks", "4", "-s", "mesh.tp=2", "-s", "mesh.pp=2", "-s", "mesh.schedule=gpipe"});
  const nlohmann::json mesh = succeed_with_json({"ckpt", "inspect", "run", "--json"})["mesh"];
  EXPECT_EQ(
      mesh,
      nlohmann::json::parse(
          R"({"ranks": 4, "dp": 1, "zero": 0, "tp": 2, "sequence_parallel": true, "pp": 2, "schedule": "gpipe", "virtual_stages": 1})"));
  expect_contains(succeed({"ckpt", "inspect", "run"}).out,
                  {"written by 4 ranks: dp=1 zero=0 tp=2 sequence_parallel=true pp=2 schedule=gpipe"});
}

TEST_F(Ckpt, DigestDoesNotDependOnTheMesh) {
  const Arguments tree = {"-s", "numerics.reduction=tree", "-s", "train.micro_batch=1"};
  train("one", tree);
  train("four", tree + Arguments{"--ranks", "4", "-s", "mesh.zero=3"});
  train("stages", tree + Arguments{"--ranks", "2", "-s", "mesh.pp=2"});
  train("other", tree + Arguments{"-s", "train.seed=2"});
  const std::string digest = succeed({"ckpt", "digest", "one", "--all"}).out;
  EXPECT_EQ(succeed({"ckpt", "digest", "four", "--all"}).out, digest);
  EXPECT_EQ(succeed({"ckpt", "digest", "stages", "--all"}).out, digest);
  EXPECT_NE(succeed({"ckpt", "digest", "other", "--all"}).out, digest);
  const nlohmann::json json = succeed_with_json({"ckpt", "digest", "one", "--json"});
  expect_contains(digest, {"total " + json["total"].get<std::string>(),
                           "embed.tokens F32 [257, 64] " + json["tensors"]["embed.tokens"].get<std::string>()});
}

TEST_F(Ckpt, DigestIsWhatTheDocumentSays) {
  train("run");
  const std::string text = succeed({"ckpt", "digest", "run", "--all"}).out;
  const std::size_t total = text.find("total ");
  EXPECT_EQ(text.substr(total), "total " + hash_of(std::string_view(text).substr(0, total)) + "\n");
  const std::string state = R"({"position":12,"step":3,"updates":3})";
  expect_contains(text, {"state " + state + " " + hash_of(std::string_view(state)) + "\n"});
  const nlohmann::json told = succeed_with_json({"ckpt", "digest", "run", "--json"});
  EXPECT_EQ(told.at("state"), nlohmann::json::parse(state));
  EXPECT_EQ(text.substr(total), "total " + told.at("total").get<std::string>() + "\n");
  for (const auto& [name, hash] : told.at("tensors").items()) {
    expect_contains(text, {"] " + hash.get<std::string>() + "\n", name + " F32 ["});
  }
}

TEST_F(Ckpt, VerifyAnswersInJsonWhateverIsDamaged) {
  train("run");
  const std::string manifest = "run/checkpoints/step-00000003/manifest.json";
  std::string text = read(manifest);
  text[text.find("adamw") + 1] = '\xE9';  // no UTF-8, which JSON is not without
  write(manifest, text);
  const Outcome outcome = run({"ckpt", "verify", "run", "--json"});
  EXPECT_EQ(outcome.status, 1) << outcome;
  const nlohmann::json answer = nlohmann::json::parse(outcome.out);
  EXPECT_FALSE(answer.at("whole"));
  expect_contains(answer.at("damages").at(0).get<std::string>(), {manifest, "damaged", "UTF-8"});
}

TEST_F(Ckpt, VerifyNamesWhatIsDamaged) {
  train("run");
  const std::string checkpoint = "run/checkpoints/step-00000003";
  expect_contains(succeed({"ckpt", "verify", "run"}).out, {checkpoint + " is whole: ", " in 2 files"});
  EXPECT_EQ(succeed_with_json({"ckpt", "verify", "run", "--json"})["whole"], true);
  const std::string file = checkpoint + "/optimizer.safetensors";
  std::string bytes = read(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write(file, bytes);
  const Outcome damaged = run({"ckpt", "verify", "run"});
  EXPECT_EQ(damaged.status, 1) << damaged;
  expect_contains(damaged.out, {"optimizer.safetensors", "\"norm.weight.v\""});
  expect_contains(damaged.err, {checkpoint + " is damaged"});
  const Outcome json = run({"ckpt", "verify", "run", "--json"});
  EXPECT_EQ(json.status, 1);
  const nlohmann::json said = nlohmann::json::parse(json.out);
  EXPECT_EQ(said["whole"], false);
  EXPECT_EQ(said["damages"].size(), 1U);
}

}  // namespace
}  // namespace meshtrain
