// Hugging Face folders in and out: the models that their library saved (tests/reference/huggingface.py) give
// its logits, come back byte for byte, and train, evaluate and generate as they are.
#include "checkpoint/huggingface/folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "checkpoint/huggingface/config.h"
#include "checkpoint/safetensors.h"
#include "program.h"
#include "train/checkpointing.h"
#include "train/inference.h"

namespace meshtrain {
namespace {

const std::vector<std::string> kFamilies = {"gpt2", "llama", "qwen2", "qwen3"};

fs::path data(const std::string& name) {
  return fs::path(MESHTRAIN_TEST_DATA) / "huggingface" / name;
}

template <class T>
std::vector<T> values_of(const SafetensorsReader& file, const char* name) {
  const SafetensorsEntry* entry = file.find(name);
  if (entry == nullptr) throw std::runtime_error("no such tensor");
  std::vector<T> values(entry->data.size() / sizeof(T));
  std::memcpy(values.data(), entry->data.data(), entry->data.size());
  return values;
}

// {tensor: (type, shape, bytes)} of all safetensors files of a folder.
using Stored = std::map<std::string, std::tuple<std::string, std::vector<std::int64_t>, std::string>>;
Stored stored_in(const fs::path& folder) {
  Stored result;
  for (const fs::directory_entry& file : fs::directory_iterator(folder)) {
    if (file.path().extension() != ".safetensors") continue;
    const SafetensorsReader reader(file.path().string());
    for (const SafetensorsEntry& entry : reader.entries()) {
      std::string bytes(reinterpret_cast<const char*>(entry.data.data()), entry.data.size());
      EXPECT_TRUE(result.try_emplace(entry.name, entry.dtype_name, entry.dims, std::move(bytes)).second);
    }
  }
  return result;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

void expect_same_files(const fs::path& expected, const fs::path& actual) {
  EXPECT_EQ(names_in(actual), names_in(expected));
  for (const std::string& name : names_in(expected))
    EXPECT_TRUE(read_file(expected / name) == read_file(actual / name)) << name;
}

// The tensors of a folder of any type in fp32, under our names.
std::map<std::string, std::vector<float>> parameters_of(const fs::path& path) {
  const HuggingFaceFolder folder(path.string());
  std::map<std::string, std::vector<float>> result;
  for (const HfTensor& tensor : hf_tensors(folder.spec(), "")) {
    for (const HfTensor::Part& part : tensor.parts) {
      std::vector<float>& values = result[part.name];
      values.resize(static_cast<std::size_t>(part.shape.numel()));
      folder.read(part.name, part.shape, 0, values);
    }
  }
  return result;
}

class HuggingFace : public ProgramTest {
 protected:
  // A copy that a test may change.
  fs::path copy_of(const std::string& family, const std::string& name) const {
    fs::copy(data(family), path(name));
    return path(name);
  }
  void edit_config(const std::string& folder, const std::function<void(nlohmann::json&)>& edit) const {
    nlohmann::json config = read_json(folder + "/config.json");
    edit(config);
    write(folder + "/config.json", config.dump(2));
  }
  void expect_import_refused(const std::string& folder, std::initializer_list<std::string_view> parts) const {
    expect_refused({"ckpt", "import", folder, "--out", "x.ckpt"}, parts);
    EXPECT_FALSE(exists("x.ckpt"));
  }
  // Tokens of the smallest vocabulary here, as llm.c stores them.
  void write_tokens() const {
    std::vector<std::int32_t> header(256);
    header[0] = 20240520;
    header[1] = 1;
    header[2] = 1000;
    std::vector<std::uint16_t> tokens;
    for (std::uint16_t i = 0; i < 1000; ++i) tokens.push_back(static_cast<std::uint16_t>(i * 7U % 83U));
    write("tokens.bin", std::string(reinterpret_cast<const char*>(header.data()), 1024) +
                            std::string(reinterpret_cast<const char*>(tokens.data()), 2000));
  }
  // A model that nothing changes: one step with a learning rate of 0.
  Arguments idle_step(const std::string& mesh) const {
    write_tokens();
    return Arguments{"-s", "data.train=tokens.bin"} +
           set({"data.tokenizer=bytes", "data.seq_len=16", "train.steps=1", "train.global_batch=4",
                "train.micro_batch=1", "optimizer.lr=0", "optimizer.weight_decay=0", "precision.compute=fp32",
                "machine.threads=1", "machine.peak_tflops=off", "output.dir=run-" + mesh});
  }
};

// --- What the library computes -----------------------------------------------------------------------

TEST_F(HuggingFace, LogitsAreThoseOfTheLibrary) {
  for (const std::string& family : kFamilies) {
    SCOPED_TRACE(family);
    const HuggingFaceFolder folder(data(family).string());
    const SafetensorsReader expected(data(family + ".safetensors").string());
    const auto tokens = values_of<std::int32_t>(expected, "tokens");
    const auto logits = values_of<float>(expected, "logits");
    const auto count = static_cast<std::int64_t>(tokens.size());
    InferenceModel model(folder.spec(), DType::kF32,
                         {.largest = {.batch = 1, .seq = count}, .cache_positions = count}, 1);
    load_weights(model.params(), model.stream(), folder);
    float worst = 0.0F;
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      const std::vector<float> row = model.next_logits(std::span(tokens).subspan(t, 1));
      ASSERT_EQ(row.size() * tokens.size(), logits.size());
      for (std::size_t v = 0; v < row.size(); ++v)
        worst = std::max(worst, std::abs(row[v] - logits[t * row.size() + v]));
    }
    EXPECT_LE(worst, 1e-5F);
  }
}

TEST_F(HuggingFace, ARangeIsAPartOfTheWhole) {
  for (const std::string& family : kFamilies) {
    const HuggingFaceFolder folder(data(family).string());
    for (const HfTensor& tensor : hf_tensors(folder.spec(), "")) {
      for (const HfTensor::Part& part : tensor.parts) {
        const auto all = static_cast<std::size_t>(part.shape.numel());
        std::vector<float> whole(all);
        folder.read(part.name, part.shape, 0, whole);
        for (const auto& [first, count] : {std::pair<std::size_t, std::size_t>{0, 1},
                                           {all - 1, 1},
                                           {all / 3, all / 2},
                                           {1, all - 2},
                                           {all / 2, 0}}) {
          std::vector<float> range(count);
          folder.read(part.name, part.shape, static_cast<std::int64_t>(first), range);
          EXPECT_TRUE(
              std::equal(range.begin(), range.end(), whole.begin() + static_cast<std::ptrdiff_t>(first)))
              << family << " " << part.name << " from " << first;
        }
      }
    }
  }
}

// --- There and back ----------------------------------------------------------------------------------

TEST_F(HuggingFace, ImportThenExportGivesTheSameFiles) {
  // Without a tokenizer, other files go along all the same.
  copy_of("qwen2", "qwen2-more");
  write("qwen2-more/generation_config.json", "{}");
  succeed({"ckpt", "import", "qwen2-more", "--out", "more.ckpt"});
  succeed({"ckpt", "export", "more.ckpt", "--out", "more"});
  expect_same_files(path("qwen2-more"), path("more"));
  for (const std::string& family : kFamilies) {
    SCOPED_TRACE(family);
    succeed({"ckpt", "import", data(family).string(), "--out", family + ".ckpt"});
    succeed({"ckpt", "export", family + ".ckpt", "--out", family});
    expect_same_files(data(family), path(family));
    EXPECT_FALSE(exists(family + ".partial"));
  }
}

// Every 16-bit pattern in an embedding, and fp32 NaNs with payloads, in one model of mixed types.
TEST_F(HuggingFace, EveryBitPatternComesBack) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const std::string name(name_of(dtype));
    SCOPED_TRACE(name);
    fs::create_directory(path(name));
    write(name + "/config.json", R"({"model_type": "llama", "vocab_size": 8192, "hidden_size": 8,
      "intermediate_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2, "tie_word_embeddings": true})");
    const ModelSpec spec = spec_of_hf_config(read(name + "/config.json"), name);
    std::vector<SafetensorsDecl> decls;
    for (const HfTensor& tensor : hf_tensors(spec, "model."))
      decls.push_back({tensor.name, tensor.name == "model.norm.weight" ? DType::kF32 : dtype, tensor.shape});
    SafetensorsWriter writer(path(name + "/model.safetensors").string(), decls);
    std::uint32_t next = 0;
    for (const SafetensorsDecl& decl : decls) {
      if (decl.name == "lm_head.weight") next = 0;  // a copy of the embedding, which comes first
      for (std::int64_t i = 0; i < decl.shape.numel(); ++i) {
        const std::uint32_t bits =
            decl.dtype == DType::kF32 ? 0xFF800001U + static_cast<std::uint32_t>(i) : next++;
        writer.append(std::as_bytes(std::span(&bits, 1)).first(static_cast<std::size_t>(size_of(decl.dtype))));
      }
    }
    writer.finish();
    succeed({"ckpt", "import", name, "--out", name + ".ckpt"});
    succeed({"ckpt", "export", name + ".ckpt", "--out", name + "-back"});
    EXPECT_TRUE(stored_in(path(name)) == stored_in(path(name + "-back")));
    EXPECT_EQ(stored_in(path(name)).size(), decls.size());
  }
}

TEST_F(HuggingFace, ExportRoundsToTheTypeThatIsAskedFor) {
  succeed({"ckpt", "import", data("llama").string(), "--out", "llama.ckpt"});
  const auto exact = parameters_of(data("llama"));
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    const std::string name(name_of(dtype));
    succeed({"ckpt", "export", "llama.ckpt", "--out", name, "--dtype", name});
    for (const auto& [tensor, values] : parameters_of(path(name))) {
      const std::vector<float>& expected = exact.at(tensor);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const float rounded = dtype == DType::kF32    ? expected[i]
                              : dtype == DType::kBF16 ? static_cast<float>(BF16(expected[i]))
                                                      : static_cast<float>(F16(expected[i]));
        ASSERT_EQ(values[i], rounded) << tensor;
      }
    }
  }
  EXPECT_EQ(read_json("bf16/config.json").at("dtype"), "bfloat16");
  EXPECT_EQ(read_json("fp16/config.json").at("dtype"), "float16");
}

// The weights of a run that changed none are the folder's, whichever mesh read and wrote them.
TEST_F(HuggingFace, EveryMeshReadsAndWritesTheSameWeights) {
  for (const std::string& family : {std::string("gpt2"), std::string("llama")}) {
    for (const std::vector<std::string>& mesh :
         {std::vector<std::string>{"mesh.dp=1"}, {"mesh.tp=2"}, {"mesh.pp=2"}, {"mesh.dp=2", "mesh.zero=3"}}) {
      SCOPED_TRACE(family + " " + mesh.front());
      const std::string name = family + mesh.front();
      const std::string folder = data(family).string();
      succeed(Arguments{"train", folder} + idle_step(name) + set(mesh));
      succeed({"ckpt", "export", "run-" + name, "--out", name});
      EXPECT_TRUE(parameters_of(path(name)) == parameters_of(data(family)));
    }
  }
}

TEST_F(HuggingFace, ATrainedModelComesBackAsItIs) {
  for (const std::string preset : {"gpt2-tiny", "llama-tiny"}) {  // of plain bytes
    SCOPED_TRACE(preset);
    write_config("a.toml", preset);
    const std::string run_folder = "run-" + preset;
    succeed(Arguments{"train", "a.toml", "-s", "train.steps=4", "-s", "output.dir=" + run_folder});
    succeed({"ckpt", "export", run_folder, "--out", preset});
    succeed({"ckpt", "import", preset, "--out", preset + ".ckpt"});
    const Arguments options =
        Arguments{"--data", "text.txt", "--json"} + set({"data.seq_len=32", "precision.compute=fp32"});
    const auto loss = [&](const std::string& model) {
      return succeed_with_json(Arguments{"eval", model} + options).at("nats_per_token");
    };
    const nlohmann::json expected = loss(run_folder);
    EXPECT_TRUE(expected.is_number());
    EXPECT_EQ(loss(preset), expected);
    EXPECT_EQ(loss(preset + ".ckpt"), expected);
  }
}

// --- A folder where a model is asked for -------------------------------------------------------------

TEST_F(HuggingFace, GeneratesAlikeFromTheFolderAndItsCheckpoint) {
  succeed({"ckpt", "import", data("gpt2").string(), "--out", "gpt2.ckpt"});
  const Arguments options = {"--prompt", "the sea", "--tokens", "8", "--temperature", "0"};
  const std::string text = succeed(Arguments{"generate", data("gpt2").string()} + options).out;
  EXPECT_TRUE(text.starts_with("the sea"));
  EXPECT_GT(text.size(), std::string("the sea\n").size());
  EXPECT_EQ(succeed(Arguments{"generate", "gpt2.ckpt"} + options).out, text);
  // The tokenizer lies in the checkpoint, wherever that is moved to.
  fs::rename(path("gpt2.ckpt"), path("moved"));
  EXPECT_EQ(succeed(Arguments{"generate", "moved"} + options).out, text);
  // A tokenizer that may not be what it was is not used, though it can be read.
  std::string tokenizer = read("moved/tokenizer/tokenizer.json");
  tokenizer.at(tokenizer.find(' ')) = '\n';
  write("moved/tokenizer/tokenizer.json", tokenizer);
  expect_refused(Arguments{"generate", "moved"} + options, {"moved/tokenizer/tokenizer.json", "hash"});
  write("a.toml", "[model]\nfrom = \"moved\"\n");
  expect_refused(Arguments{"train", "a.toml"} + idle_step("damaged"),
                 {"moved/tokenizer/tokenizer.json", "hash"});
}

TEST_F(HuggingFace, TrainsFromAFolderAndGoesOnWithoutIt) {
  copy_of("gpt2", "model");
  write_text("text.txt");
  const Arguments options = Arguments{"-s", "data.train=text.txt"} +
                            set({"train.global_batch=4", "train.steps=4", "machine.threads=1",
                                 "machine.peak_tflops=off", "output.dir=run", "optimizer.lr=1e-3"});
  succeed(Arguments{"train", "model"} + options);
  const auto whole = bits_of_metrics("run");
  ASSERT_EQ(whole.size(), 4U);
  succeed(Arguments{"train", "model", "--stop-at-step", "2"} + options + set({"output.dir=cut"}));
  const std::string tokenizer = read("model/tokenizer.json");
  fs::remove_all(path("model"));
  fs::create_directory(path("model"));
  write("model/tokenizer.json", tokenizer);  // the run goes on using it
  succeed({"train", "cut", "--resume"});
  EXPECT_EQ(bits_of_metrics("cut"), whole);
  expect_contains(read("run/config.toml"),
                  {"from = \"model\"", "layers = 2", "tokenizer = \"model/tokenizer.json\""});
}

TEST_F(HuggingFace, AnImportedCheckpointIsTheStartOfARun) {
  succeed({"ckpt", "import", data("qwen3").string(), "--out", "start"});
  succeed(Arguments{"train", data("qwen3").string()} + idle_step("folder"));
  write("a.toml", "[model]\nfrom = \"start\"\n");
  succeed(Arguments{"train", "a.toml"} + idle_step("from"));
  EXPECT_EQ(bits_of_metrics("run-from"), bits_of_metrics("run-folder"));
  // The same as going on from it, on another mesh too: step 0, no optimizer state.
  succeed(Arguments{"train", data("qwen3").string(), "--resume-from", "start"} + idle_step("resumed") +
          set({"mesh.dp=2"}));
  EXPECT_EQ(metrics("run-resumed").at(0).at("step"), 1);
  succeed({"ckpt", "export", "run-resumed", "--out", "back"});
  EXPECT_TRUE(parameters_of(path("back")) == parameters_of(data("qwen3")));
  // One that is damaged is none.
  std::string shard = read("start/model.safetensors");
  shard.back() = static_cast<char>(shard.back() ^ 1);
  write("start/model.safetensors", shard);
  expect_refused(Arguments{"train", "a.toml"} + idle_step("damaged"), {"start/model.safetensors", "damaged"});
}

TEST_F(HuggingFace, SizesThatContradictTheSourceAreRefused) {
  const std::string llama = data("llama").string();
  write_text("text.txt");
  const auto train = [&](const std::string& key) {
    return Arguments{"train", llama, "-s", "data.train=text.txt", "-s", key};
  };
  expect_refused(train("model.hidden=48"), {"model.hidden = 48", "24", llama});
  expect_refused(train("model.tie_embeddings=true"), {"model.tie_embeddings = true", "false"});
  expect_refused(train("model.preset=llama-tiny"), {"model.preset", "model.from", "leave one of them out"});
  write("a.toml", "[model]\nfrom = \"nowhere\"\n");
  expect_refused({"train", "a.toml"}, {"a.toml, line 2", "model.from", "nowhere"});
  // What changes no weight may differ.
  succeed({"plan", llama, "-s", "model.context=128", "-s", "model.rope_theta=1e6", "-s", "data.seq_len=128"});
}

// --- What is wrong with a folder ---------------------------------------------------------------------

TEST_F(HuggingFace, FoldersThatAreIncompleteAreRefused) {
  copy_of("llama", "missing");
  fs::remove(path("missing/model-00003-of-00004.safetensors"));
  expect_import_refused("missing", {"model-00003-of-00004.safetensors", "not there"});

  copy_of("llama", "cut");
  fs::resize_file(path("cut/model-00002-of-00004.safetensors"), 19000);
  expect_import_refused("cut", {"model-00002-of-00004.safetensors"});

  copy_of("llama", "no_index");
  fs::remove(path("no_index/model.safetensors.index.json"));
  expect_import_refused("no_index", {"no weights", "model.safetensors"});

  copy_of("qwen2", "pickle");
  fs::rename(path("pickle/model.safetensors"), path("pickle/pytorch_model.bin"));
  expect_import_refused("pickle", {"pytorch_model.bin", "safetensors"});

  copy_of("qwen2", "no_config");
  fs::remove(path("no_config/config.json"));
  expect_import_refused("no_config", {"config.json"});
}

TEST_F(HuggingFace, AnIndexThatLiesIsRefused) {
  const auto edit_index = [&](const std::string& name, const std::function<void(nlohmann::json&)>& edit) {
    copy_of("llama", name);
    const std::string file = name + "/model.safetensors.index.json";
    nlohmann::json index = read_json(file);
    edit(index.at("weight_map"));
    write(file, index.dump());
  };
  edit_index("other", [](auto& map) { map["lm_head.weight"] = "model-00001-of-00004.safetensors"; });
  expect_import_refused("other", {"index.json", "lm_head.weight", "model-00001"});
  edit_index("more", [](auto& map) { map["ghost"] = "model-00001-of-00004.safetensors"; });
  expect_import_refused("more", {"ghost", "no file has it"});
  edit_index("less", [](auto& map) { map.erase("model.norm.weight"); });
  expect_import_refused("less", {"model.norm.weight", "does not list"});
  edit_index("outside", [](auto& map) { map["model.norm.weight"] = "../llama/model.safetensors"; });
  expect_import_refused("outside", {"model.norm.weight", "not the name of a file"});
  edit_index("number", [](auto& map) { map["model.norm.weight"] = 3; });
  expect_import_refused("number", {"index.json", "not an index"});
  copy_of("llama", "twice");
  fs::copy_file(path("twice/model-00001-of-00004.safetensors"), path("twice/again.safetensors"));
  nlohmann::json index = read_json("twice/model.safetensors.index.json");
  index["weight_map"]["ghost"] = "again.safetensors";
  write("twice/model.safetensors.index.json", index.dump());
  expect_import_refused("twice", {"is both in", "again.safetensors"});
}

TEST_F(HuggingFace, TensorsThatDoNotFitTheConfigAreRefused) {
  const auto edited = [&](const std::string& family, const std::string& name, const char* key, auto value) {
    copy_of(family, name);
    edit_config(name, [&](nlohmann::json& config) { config[key] = value; });
  };
  edited("qwen3", "more_layers", "num_hidden_layers", 3);
  expect_import_refused("more_layers", {"no tensor \"model.layers.2.input_layernorm.weight\" [20]"});
  edited("qwen3", "fewer_layers", "num_hidden_layers", 1);
  expect_import_refused("fewer_layers", {"no place", "model.layers.1."});
  edited("gpt2", "wider", "n_inner", 60);
  expect_import_refused("wider", {"transformer.h.0.mlp.c_fc.weight", "[16, 64]", "[16, 60]"});
  edited("qwen2", "untied", "tie_word_embeddings", false);
  expect_import_refused("untied", {"lm_head.weight", "tie_word_embeddings is false"});
  write_tokens();
  edited("llama", "tied", "tie_word_embeddings", true);
  expect_refused({"eval", "tied", "--data", "tokens.bin", "-s", "data.seq_len=16"},
                 {"lm_head.weight is not equal"});
}

// Old GPT-2 files: no prefix, causal masks among the weights.
TEST_F(HuggingFace, OldGpt2FilesAreReadAndTheirMasksLeftOut) {
  copy_of("gpt2", "old");
  const Stored weights = stored_in(data("gpt2"));
  std::vector<SafetensorsDecl> decls;
  std::string bytes;
  for (const auto& [name, tensor] : weights) {
    const auto& dims = std::get<1>(tensor);
    decls.push_back({name.substr(std::string("transformer.").size()), DType::kF32,
                     dims.size() == 1 ? Shape{dims[0]} : Shape{dims[0], dims[1]}});
    bytes += std::get<2>(tensor);
  }
  decls.push_back({"h.0.attn.bias", DType::kU8, {1, 1, 32, 32}});
  decls.push_back({"h.1.attn.masked_bias", DType::kF32, {1}});
  bytes += std::string(32 * 32 + 4, '\1');
  SafetensorsWriter writer(path("old/model.safetensors").string(), decls);
  writer.append(std::as_bytes(std::span(bytes)));
  writer.finish();
  EXPECT_TRUE(parameters_of(path("old")) == parameters_of(data("gpt2")));

  const Outcome imported = succeed({"ckpt", "import", "old", "--out", "old.ckpt"});
  expect_contains(imported.err, {"omitting 2 constants", "h.0.attn.bias"});
  succeed({"ckpt", "export", "old.ckpt", "--out", "back"});
  Stored expected = stored_in(path("old"));
  expected.erase("h.0.attn.bias");
  expected.erase("h.1.attn.masked_bias");
  EXPECT_TRUE(stored_in(path("back")) == expected);
}

}  // namespace
}  // namespace meshtrain
