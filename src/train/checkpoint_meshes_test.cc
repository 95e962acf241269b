// A checkpoint that any mesh wrote is the same state on any other.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/checkpoint_writer.h"
#include "checkpoint/digest.h"
#include "train/checkpointing.h"
#include "train/mesh_testing.h"
#include "train/resume.h"
#include "train/whole_state.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;
using testing::config_for;
using testing::mesh_of;
using testing::name_of_mesh;
using testing::on_mesh;
using testing::train;

std::vector<MeshConfig> all_meshes() {
  std::vector<MeshConfig> meshes = {mesh_of(1, 0, 1, 1)};
  for (const MeshConfig& mesh : testing::several_ranks()) meshes.push_back(mesh);
  return meshes;
}

using State = std::map<std::string, std::vector<float>>;

State state_of(Assembly& assembly) {
  State result;
  WholeState state(assembly, Copies::kCompare);
  for (const auto* tensors : {&state.model(), &state.optimizer()}) {
    for (const NamedTensor& tensor : *tensors) {
      const auto values = tensor.get();
      result[tensor.name].assign(values.begin(), values.end());
    }
  }
  return result;
}

class CheckpointMeshes : public ::testing::TestWithParam<Architecture> {
 protected:
  CheckpointMeshes() { fs::remove_all(directory_); }
  ~CheckpointMeshes() override { fs::remove_all(directory_); }

  Config config(const MeshConfig& mesh) const { return config_for(GetParam(), mesh); }
  std::string folder(const std::string& name) const { return directory_ + "/" + name; }
  static void save(Assembly& assembly, const std::string& path, const RunPosition& position) {
    assembly.settle();
    write_checkpoint(path, checkpoint_contents(assembly, position), assembly.groups.checkpoint.get());
  }

  std::string directory_ =
      (fs::temp_directory_path() / fmt::format("meshtrain_checkpoint_meshes_{}", getpid())).string();
};

// Of what a mesh saved, its state and the loss of the step after.
struct Saved {
  State state;
  std::vector<std::string> digest;
  double next = 0.0;
};

TEST_P(CheckpointMeshes, EveryPairOfMeshes) {
  const RunPosition at = {.step = 2, .updates = 2, .position = 2 * testing::kBatch};
  std::vector<std::string> digest_of_tp1;
  for (const MeshConfig& from : all_meshes()) {
    SCOPED_TRACE("from " + name_of_mesh(from));
    Saved saved;
    on_mesh(config(from), [&](Assembly& assembly) {
      assembly.initialize();
      for (int update = 1; update <= 2; ++update) train(assembly, update);
      State state = state_of(assembly);
      save(assembly, folder("from"), at);
      const double next = train(assembly, 3);
      if (assembly.leads()) saved.state = std::move(state), saved.next = next;
    });
    saved.digest = to_lines(digest_of(Checkpoint(folder("from"))));
    if (from.tp == 1) {
      if (digest_of_tp1.empty()) digest_of_tp1 = saved.digest;
      EXPECT_EQ(saved.digest, digest_of_tp1) << "sums in trees: the same run on every mesh without tp";
    }
    for (const MeshConfig& to : all_meshes()) {
      SCOPED_TRACE("to " + name_of_mesh(to));
      on_mesh(config(to), [&](Assembly& assembly) {
        const ResumeSource source = whole_checkpoint(folder("from"), *assembly.groups.control);
        const RunPosition position = restore(assembly, *source.checkpoint);
        const State state = state_of(assembly);
        save(assembly, folder("to"), position);
        const double next = train(assembly, position.updates + 1);
        if (!assembly.leads()) return;
        EXPECT_EQ(position, at);
        EXPECT_TRUE(state == saved.state);
        if (to.tp == from.tp) {
          EXPECT_EQ(next, saved.next);
        } else {
          EXPECT_NEAR(next, saved.next, 1e-6 * saved.next);
        }
      });
      EXPECT_EQ(to_lines(digest_of(Checkpoint(folder("to")))), saved.digest);
    }
  }
}

// Bytes of the tensors of a checkpoint, by file.
std::map<std::string, std::int64_t> bytes_by_file(const Checkpoint& checkpoint) {
  std::map<std::string, std::int64_t> bytes;
  for (const auto& [name, tensor] : checkpoint.manifest().contents.tensors) {
    for (const ManifestPiece& piece : tensor.pieces) bytes[piece.file] += piece.range.count * 4;
  }
  return bytes;
}

TEST_P(CheckpointMeshes, RanksShareTheWork) {
  std::int64_t whole = 0;
  for (const MeshConfig& mesh : all_meshes()) {
    SCOPED_TRACE(name_of_mesh(mesh));
    fs::remove_all(folder("a"));
    on_mesh(config(mesh), [&](Assembly& assembly) {
      assembly.initialize();
      save(assembly, folder("a"), {});
    });
    std::int64_t total = 0;
    std::map<std::int64_t, int> writers;  // of as many bytes of a model file
    for (const auto& [file, bytes] : bytes_by_file(Checkpoint(folder("a")))) {
      total += bytes;
      if (file.starts_with("model")) ++writers[bytes];
    }
    if (whole == 0) whole = total;
    EXPECT_EQ(total, whole) << "each tensor once";
    if (mesh.tp * mesh.pp == 1) {
      // Units are cut into equal parts; padding, which is not written, is all that they differ by.
      EXPECT_LT(writers.rbegin()->first - writers.begin()->first, writers.begin()->first / 20);
    }
  }
}

// The others' files may hold anything: a rank opens none that has nothing for it.
TEST_P(CheckpointMeshes, ARankReadsItsOwnSlicesOnly) {
  for (const MeshConfig& mesh : {mesh_of(2, 1, 1, 1), mesh_of(1, 0, 2, 2), mesh_of(2, 3, 2, 2)}) {
    SCOPED_TRACE(name_of_mesh(mesh));
    fs::remove_all(directory_);
    State saved;
    on_mesh(config(mesh), [&](Assembly& assembly) {
      assembly.initialize();
      train(assembly, 1);
      State state = state_of(assembly);
      save(assembly, folder("all"), {.step = 1, .updates = 1});
      if (assembly.leads()) saved = std::move(state);
    });
    on_mesh(config(mesh), [&](Assembly& assembly) {
      // What all tensor-parallel ranks hold was written by the first of them.
      const int rank = assembly.groups.control->rank();
      const std::string own = folder(fmt::format("of-{}", rank));
      fs::copy(folder("all"), own);
      for (const auto& entry : fs::directory_iterator(own)) {
        const std::string name = entry.path().filename();
        const bool first = name.find(fmt::format("-{:05}-of-", rank - rank % mesh.tp + 1)) != std::string::npos;
        const bool mine = name.find(fmt::format("-{:05}-of-", rank + 1)) != std::string::npos;
        if (name == kManifestName || first || mine) continue;
        std::ofstream(entry.path(), std::ios::in | std::ios::out) << "not what it was";
      }
      restore(assembly, Checkpoint(own, Verify::kSizes));
      const State state = state_of(assembly);
      EXPECT_TRUE(state == saved || !assembly.leads());
    });
  }
}

TEST_P(CheckpointMeshes, AnAsynchronousSaveIsTheStateAtItsStep) {
  Config asynchronous = config(mesh_of(2, 1, 2, 1));
  asynchronous.checkpoint.async = true;
  on_mesh(asynchronous, [&](Assembly& assembly) {
    assembly.initialize();
    EXPECT_EQ(checkpoint_bytes(assembly), static_cast<std::int64_t>(assembly.checkpoint_copy().size()));
    EXPECT_LE(checkpoint_contents(assembly, {}).bytes(), checkpoint_bytes(assembly));
    fs::create_directories(folder("b"));
    CheckpointWriter writer(
        {.directory = folder("b"), .keep = 0, .async = true, .copy = assembly.checkpoint_copy(), .hook = {}},
        assembly.groups.checkpoint.get());
    for (int step = 1; step <= 3; ++step) {
      train(assembly, step);
      assembly.settle();
      writer.write(checkpoint_contents(assembly, {.step = step, .updates = step}));
    }
    writer.flush();
  });
  on_mesh(config(mesh_of(2, 1, 2, 1)), [&](Assembly& assembly) {
    assembly.initialize();
    for (int step = 1; step <= 3; ++step) {
      train(assembly, step);
      save(assembly, folder(checkpoint_name(step)), {.step = step, .updates = step});
    }
  });
  for (int step = 1; step <= 3; ++step) {
    EXPECT_EQ(to_lines(digest_of(Checkpoint(folder("b/" + checkpoint_name(step))))),
              to_lines(digest_of(Checkpoint(folder(checkpoint_name(step))))));
  }
}

TEST_P(CheckpointMeshes, AStateThatMakesNoSenseIsRefused) {
  on_mesh(config(mesh_of(1, 0, 1, 1)), [&](Assembly& assembly) {
    assembly.initialize();
    const CheckpointContents contents = checkpoint_contents(assembly, {.step = 1, .updates = 1});
    for (const char* key : {"updates", "position", "config"}) {
      for (const nlohmann::json& value : {nlohmann::json(), nlohmann::json({1, 2})}) {
        CheckpointContents other = contents;
        other.state[key] = value;
        write_checkpoint(folder("bad"), other);
        EXPECT_THROW(restore(assembly, Checkpoint(folder("bad"))), UserError) << key;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Models, CheckpointMeshes, ::testing::Values(Architecture::kGpt2, Architecture::kLlama),
                         [](const auto& test) {
                           return std::string(test.param == Architecture::kGpt2 ? "Gpt2" : "Llama");
                         });

}  // namespace
}  // namespace meshtrain
