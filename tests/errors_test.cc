// What a user does wrong: one paragraph on stderr that names it and says what to do, an exit status of 2 before
// the run or 1 during it, and nothing lost that was saved.
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <cctype>
#include <cstring>

#include "checkpoint/checkpoint_folder.h"
#include "program.h"

namespace meshtrain {
namespace {

class Errors : public ProgramTest {
 protected:
  Errors() { write_config("a.toml", "gpt2-tiny"); }

  // Refused before anything was done.
  void expect_refused(const Arguments& arguments, std::initializer_list<std::string_view> parts) const {
    ProgramTest::expect_refused(arguments, parts);
    EXPECT_FALSE(exists("run")) << "a refused run leaves no folder";
  }
  void expect_train_refused(const std::string& key, std::initializer_list<std::string_view> parts) const {
    expect_refused({"train", "a.toml", "-s", key}, parts);
  }

  void flip_byte(const std::string& name, std::size_t at) const {
    std::string bytes = read(name);
    bytes.at(at) = static_cast<char>(bytes.at(at) ^ 0x10);
    write(name, bytes);
  }
};

// --- The command line --------------------------------------------------------------------------------

TEST_F(Errors, HelpOfEveryCommandIsNoError) {
  const std::vector<Arguments> commands = {{},           {"train"},           {"eval"},
                                           {"generate"}, {"tokenize"},        {"plan"},
                                           {"bench"},    {"bench", "matmul"}, {"bench", "train"}};
  for (const Arguments& command : commands) {
    for (const std::string flag : {"--help", "-h"}) {
      const Outcome outcome = run(command + Arguments{flag});
      EXPECT_EQ(outcome.status, 0) << outcome;
      EXPECT_EQ(outcome.err, "");
      expect_contains(outcome.out, {"Usage: meshtrain"});
    }
  }
  const Outcome version = run({"--version"});
  EXPECT_EQ(version.status, 0);
  EXPECT_TRUE(version.out.starts_with("meshtrain ") && std::isdigit(version.out[10])) << version;
}

TEST_F(Errors, WithoutACommandItShowsTheHelp) {
  const Outcome outcome = run({});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.out, "");
  expect_contains(outcome.err, {"Usage: meshtrain", "train", "eval", "generate", "tokenize", "plan", "bench"});
  const Outcome bench = run({"bench"});
  EXPECT_EQ(bench.status, 2);
  expect_contains(bench.err, {"Usage: meshtrain bench", "matmul", "train"});
}

TEST_F(Errors, UnknownCommandsAndFlags) {
  expect_refused({"trian", "a.toml"}, {"trian", "the nearest is train", "meshtrain --help"});
  expect_refused({"bench", "matmlu"}, {"matmlu", "the nearest is matmul", "meshtrain bench --help"});
  expect_refused({"--foo"}, {"--foo", "before the command", "meshtrain --help"});
  expect_refused({"train", "a.toml", "--resum"},
                 {"--resum", "the nearest is --resume", "meshtrain train --help"});
  expect_refused({"ckpt", "digest", "--jsn", "run"}, {"no option --jsn", "the nearest is --json"});
  expect_refused({"train", "a.toml", "b.toml", "c"},
                 {"b.toml is one argument too many", "meshtrain train --help"});
  // Which of the two counts is not ours to guess: a job that is queued again would begin anew each time.
  expect_refused({"train", "a.toml", "--resume", "--resume-from", "run"},
                 {"--resume-from", "--resume", "excludes"});
  expect_refused({"train"}, {"CONFIG", "meshtrain train --help"});
  expect_refused({"train", "a.toml", "-s"}, {"-s", "meshtrain train --help"});
  expect_refused({"train", "a.toml", "--stop-at-step", "x"}, {"--stop-at-step", "x", "meshtrain train --help"});
  expect_refused({"generate", "run", "--tokens", "many"}, {"--tokens", "many"});
  expect_refused({"tokenize", "text.txt"}, {"--out"});
}

// --- The config --------------------------------------------------------------------------------------

TEST_F(Errors, ConfigsThatCannotBeRead) {
  expect_refused({"train", "missing.toml"}, {"missing.toml", "No such file"});
  fs::create_directory(path("folder"));
  expect_refused({"train", "folder"}, {"folder", "config.toml", "run folder"});
  write("empty.toml", "");
  expect_refused({"train", "empty.toml"}, {"empty.toml", "model.layers", "model.preset"});
  std::string garbage;
  for (int i = 0; i < 4096; ++i) garbage += static_cast<char>(i * 197 + i / 7);
  write("garbage.toml", garbage);
  expect_refused({"train", "garbage.toml"}, {"garbage.toml", "line 1", "not TOML"});
  write("large.toml", std::string(2 << 20, '#'));
  expect_refused({"train", "large.toml"}, {"large.toml", "mebibyte"});
  expect_refused({"train", MESHTRAIN_BINARY}, {MESHTRAIN_BINARY});
}

TEST_F(Errors, KeysThatAreWrong) {
  write("b.toml", read("a.toml") + "\n[trian]\nsteps = 3\n");
  expect_refused({"train", "b.toml"}, {"b.toml, line ", "[trian]", "[train]"});
  write("b.toml", "[model]\npreset = \"gpt2-tiny\"\nhedas = 4\n");
  expect_refused({"train", "b.toml"}, {"b.toml, line 3", "model.hedas", "model.heads"});
  write("b.toml", "[model]\npreset = \"gpt2-tiny\"\n[train]\nsteps = \"many\"\n");
  expect_refused({"train", "b.toml"}, {"b.toml, line 4", "train.steps", "an integer", "\"many\""});
  expect_train_refused("train.stps=3", {"train.stps", "train.steps"});
  expect_train_refused("train.steps=3.5", {"train.steps", "integer", "3.5"});
  expect_train_refused("train.steps", {"-s train.steps:", "the value is missing"});
  expect_train_refused("precision.compute=fp8", {"precision.compute", "fp32, bf16, fp16", "fp8"});
  expect_train_refused("optimizer.name=adamW", {"optimizer.name", "adamw"});
  expect_train_refused("model.preset=gpt2-125m", {"model.preset", "gpt2-125m", "gpt2-124m"});
}

TEST_F(Errors, SizesThatAreImpossible) {
  expect_train_refused("model.heads=5", {"model.heads = 5", "model.hidden = 64", "4 or 8"});
  expect_train_refused("data.seq_len=300", {"data.seq_len = 300", "model.context = 256"});
  expect_train_refused("train.global_batch=5", {"train.global_batch = 5", "train.micro_batch = 2", "4 or 6"});
  expect_train_refused("train.micro_batch=0", {"train.micro_batch = 0"});
  expect_train_refused("train.steps=0", {"train.steps = 0"});
  expect_train_refused("optimizer.warmup=21", {"optimizer.warmup = 21", "train.steps = 20"});
  expect_train_refused("optimizer.lr=nan", {"optimizer.lr"});
  expect_train_refused("model.layers=-1", {"model.layers = -1"});
  expect_train_refused("model.hidden=1000000007", {"model.hidden"});
  expect_train_refused("machine.threads=1000000", {"machine.threads"});
}

TEST_F(Errors, AMeshThatThisVersionDoesNotHave) {
  for (const std::string axis : {"cp", "ep"}) {
    expect_train_refused("mesh." + axis + "=2", {"mesh." + axis + " = 2", "set it to 1"});
  }
  expect_train_refused("mesh.zero=4", {"mesh.zero = 4", "between 0 and 3"});
}

TEST_F(Errors, AMeshThatTheModelDoesNotHave) {
  expect_train_refused("mesh.tp=3", {"mesh.tp = 3", "model.heads = 4", "Use mesh.tp = 2 or 4"});
  expect_train_refused("mesh.pp=5", {"mesh.pp = 5", "model.layers = 2", "mesh.pp = 4"});
  expect_train_refused("mesh.virtual_stages=2", {"mesh.virtual_stages = 2", "mesh.pp = 1"});
  expect_train_refused("mesh.stage_layers=[1, 1]", {"mesh.stage_layers", "2 numbers", "[2]"});
  expect_refused({"train", "a.toml", "-s", "mesh.tp=4", "-s", "data.seq_len=30"},
                 {"data.seq_len = 30", "mesh.tp = 4", "28 or 32", "mesh.sequence_parallel = false"});
  // plan and verify refuse with the same words.
  expect_refused({"plan", "a.toml", "-s", "mesh.tp=3"}, {"mesh.tp = 3", "model.heads = 4"});
  expect_refused({"verify", "a.toml", "--mesh", "dp=1", "--mesh", "pp=5"}, {"\"pp=5\"", "model.layers = 2"});
}

TEST_F(Errors, AMeshThatDoesNotFit) {
  expect_refused({"train", "a.toml", "--ranks", "3", "-s", "mesh.tp=2"},
                 {"mesh.tp = 2", "takes 2 ranks", "3 are no multiple", "Start 2 or 4 ranks"});
  expect_refused({"train", "a.toml", "--ranks", "2", "-s", "mesh.dp=1"},
                 {"mesh.dp = 1", "makes 1 ranks", "there are 2", "--ranks 1", "mesh.dp = 2"});
  expect_refused({"train", "a.toml", "--ranks", "3"}, {"train.global_batch = 4", "mesh.dp = 3", "mesh.dp = 2"});
  expect_refused({"train", "a.toml", "--ranks", "0"}, {"--ranks", "0"});
  expect_refused({"train", "a.toml", "--ranks", "2", "--ranks-as", "fibres"}, {"--ranks-as", "fibres"});
  expect_refused({"train", "a.toml", "-s", "mesh.engine=nccl"}, {"mesh.engine", "nccl", "auto, shm, mpi"});
}

TEST_F(Errors, AModelThatDoesNotFitIsRefusedAtOnceWithItsBytes) {
  const Outcome outcome = run({"train", "a.toml", "-s", "model.preset=llama-3-70b"});
  EXPECT_EQ(outcome.status, 2) << outcome;
  EXPECT_LT(outcome.cpu_seconds, 5.0);
  EXPECT_LT(outcome.peak_resident_bytes, 200'000'000);
  expect_contains(outcome.err, {"parameters", "gradients", "optimizer", "activations", "workspace", "total",
                                "282214825984 bytes", "recompute.policy", "smaller model"});
  EXPECT_EQ(outcome.err.find("\n\n"), std::string::npos) << outcome;
  EXPECT_FALSE(exists("run"));
}

// --- The data ----------------------------------------------------------------------------------------

TEST_F(Errors, TextThatIsMissingOrTooLittle) {
  expect_train_refused("data.train=nope.txt", {"data.train", "nope.txt", "meshtrain tokenize"});
  expect_train_refused("data.valid=nope.txt", {"data.valid", "nope.txt"});
  write("empty.txt", "");
  expect_train_refused("data.train=empty.txt", {"data.train", "empty.txt", "no text"});
  write("short.txt", "In the beginning");
  expect_train_refused("data.train=short.txt", {"data.train", "short.txt", "17 tokens", "data.seq_len = 32"});
  expect_train_refused("data.valid=short.txt", {"data.valid", "short.txt", "17 tokens"});
  fs::create_directory(path("folder"));
  expect_train_refused("data.train=folder", {"data.train", "folder"});
  expect_train_refused("data.tokenizer=wordpiece", {"wordpiece", "bytes"});
  expect_train_refused("data.tokenizer=missing.json", {"missing.json"});
  write("b.toml", "[model]\npreset = \"gpt2-tiny\"\n");
  expect_refused({"train", "b.toml", "-s", "output.dir=run"}, {"data.train", "not set"});
}

TEST_F(Errors, IdsBeyondTheVocabulary) {
  expect_train_refused("model.vocab=200", {"text.txt", "model.vocab", "256", "200"});
  succeed({"tokenize", "text.txt", "--out", "corpus", "--tokenizer", "bytes"});
  expect_refused({"train", "a.toml", "-s", "data.train=corpus", "-s", "model.vocab=256"},
                 {"data.train", "corpus", "the id 256", "model.vocab"});
}

TEST_F(Errors, TokenFilesThatAreDamaged) {
  succeed({"tokenize", "text.txt", "--out", "corpus", "--tokenizer", "bytes"});
  const std::string bin = read("corpus.bin");
  const std::string idx = read("corpus.idx");
  const auto expect_damage = [&](std::initializer_list<std::string_view> parts) {
    expect_train_refused("data.train=corpus", parts);
    write("corpus.bin", bin);
    write("corpus.idx", idx);
  };
  write("corpus.bin", bin.substr(0, bin.size() - 2));
  expect_damage({"data.train", "corpus.bin", "too short"});
  write("corpus.bin", "");
  expect_damage({"corpus.bin", "too short"});
  write("corpus.idx", idx.substr(0, idx.size() - 1));
  expect_damage({"corpus.idx", "broken"});
  write("corpus.idx", idx.substr(0, 20));
  expect_damage({"corpus.idx", "20 bytes"});
  write("corpus.idx", "");
  expect_damage({"corpus.idx"});
  write("corpus.idx", "MMIDIDY" + idx.substr(7));
  expect_damage({"corpus.idx", "MMIDIDX"});
  flip_byte("corpus.idx", 17);  // the type of its tokens
  expect_damage({"corpus.idx", "type code"});
  fs::remove(path("corpus.idx"));
  expect_damage({"corpus.bin", "corpus.idx"});
  fs::remove(path("corpus.bin"));
  expect_damage({"corpus.bin", "corpus.idx"});

  write("llmc.bin", "not tokens at all");
  expect_train_refused("data.train=llmc.bin", {"llmc.bin", "20240520"});
  std::string header(1024, '\0');
  const std::int32_t fields[] = {20240520, 1, 100};
  std::memcpy(header.data(), fields, sizeof fields);
  write("llmc.bin", header + std::string(100, 'x'));
  expect_train_refused("data.train=llmc.bin", {"llmc.bin", "1124 bytes", "1224"});
  header[4] = 2;
  write("llmc.bin", header);
  expect_train_refused("data.train=llmc.bin", {"llmc.bin", "version 2"});
}

// --- The folders -------------------------------------------------------------------------------------

TEST_F(Errors, OutputFoldersThatCannotBeWritten) {
  // Below a file, or where not even root may make a folder.
  expect_train_refused("output.dir=text.txt/run", {"output.dir", "text.txt/run", "Not a directory"});
  expect_train_refused("output.dir=/proc/run", {"output.dir", "/proc/run"});
  expect_train_refused("output.dir=text.txt", {"output.dir", "text.txt"});
  expect_train_refused("checkpoint.dir=text.txt/saved", {"checkpoint.dir", "text.txt/saved"});
  expect_train_refused("checkpoint.dir=/proc/saved", {"checkpoint.dir", "/proc/saved"});
}

TEST_F(Errors, AFailedStartLeavesTheRunBeforeItAlone) {
  succeed({"train", "a.toml"});
  const std::string metrics_before = read("run/metrics.jsonl");
  for (const std::string mistake : {"checkpoint.dir=text.txt/saved", "data.train=nope.txt", "model.heads=5",
                                    "model.vocab=200", "model.preset=llama-3-70b"}) {
    EXPECT_EQ(run({"train", "a.toml", "-s", mistake}).status, 2) << mistake;
    EXPECT_EQ(read("run/metrics.jsonl"), metrics_before) << mistake;
    EXPECT_FALSE(exists("run.1")) << mistake;
  }
}

TEST_F(Errors, ThreadsThatTheSystemRefuses) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer needs the address space that is taken away here";
#endif
  const Outcome outcome = run({"train", "a.toml", "-s", "machine.threads=5000"}, [] {
    const rlimit limit = {rlim_t{4} << 30U, rlim_t{4} << 30U};  // room for five hundred stacks
    setrlimit(RLIMIT_AS, &limit);
  });
  EXPECT_EQ(outcome.status, 2) << outcome;
  expect_one_paragraph(outcome, {"of 5000 threads", "machine.threads"});
  EXPECT_FALSE(exists("run"));
}

// --- Checkpoints -------------------------------------------------------------------------------------

TEST_F(Errors, DamagedCheckpoints) {
  const std::string earlier = "run/checkpoints/" + checkpoint_name(10);
  const std::string newest = "run/checkpoints/" + checkpoint_name(20);
  succeed({"train", "a.toml", "-s", "checkpoint.every=10"});
  succeed({"train", "a.toml", "-s", "checkpoint.every=10", "-s", "output.dir=whole"});
  fs::copy(path("run"), path("kept"), fs::copy_options::recursive);
  for (const std::string file : {"/model.safetensors", "/optimizer.safetensors", "/manifest.json"}) {
    const std::string whole = read(newest + file);
    const auto damage_at = [&](std::size_t at) { flip_byte(newest + file, at); };
    const std::vector<std::function<void()>> damages = {
        [&] { damage_at(3); }, [&] { damage_at(whole.size() / 2); }, [&] { damage_at(whole.size() - 3); },
        [&] { write(newest + file, whole.substr(0, whole.size() / 2)); }, [&] { write(newest + file, ""); }};
    for (std::size_t i = 0; i < damages.size(); ++i) {
      SCOPED_TRACE(file + ' ' + std::to_string(i));
      fs::remove_all(path("run"));
      fs::copy(path("kept"), path("run"), fs::copy_options::recursive);
      damages[i]();
      // Named, it is refused, and nothing has changed.
      const Outcome refused = run({"train", "run", "--resume-from", newest, "-s", "train.steps=30"});
      EXPECT_EQ(refused.status, 2) << refused;
      expect_one_paragraph(refused, {newest + file, earlier});
      EXPECT_EQ(read("run/metrics.jsonl"), read("kept/metrics.jsonl"));
      // --resume goes on from the one before it, and says so.
      const Outcome passed_over = succeed({"train", "run", "--resume"});
      expect_contains(passed_over.err,
                      {newest + file, "passed over", "resuming from " + earlier, newest + ".damaged"});
      EXPECT_EQ(bits_of_metrics("run"), bits_of_metrics("whole"));
      EXPECT_EQ(tensors_of(newest), tensors_of("whole/checkpoints/" + checkpoint_name(20)));
      EXPECT_FALSE(exists(newest + ".damaged")) << "a whole one has taken its place";
    }
  }
  // Commands that only read the weights look at these.
  flip_byte(newest + "/model.safetensors", fs::file_size(path(newest + "/model.safetensors")) - 9);
  const Outcome flipped = run({"generate", "run"});
  EXPECT_EQ(flipped.status, 2) << flipped;
  expect_one_paragraph(flipped, {newest + "/model.safetensors", "do not give the hash"});
  write(newest + "/model.safetensors", read(newest + "/model.safetensors").substr(0, 5000));
  const Outcome outcome = run({"generate", "run"});
  EXPECT_EQ(outcome.status, 2) << outcome;
  expect_one_paragraph(outcome, {newest + "/model.safetensors"});
  // Where none is whole, nothing starts afresh by itself.
  write(earlier + "/manifest.json", "{}");
  const Outcome none = run({"train", "run", "--resume"});
  EXPECT_EQ(none.status, 2) << none;
  expect_contains(none.err, {newest + "/model.safetensors", earlier, "step 1"});
  EXPECT_TRUE(exists(newest));
}

TEST_F(Errors, ALossThatIsNotANumberEndsTheRunAndNoMore) {
  const Arguments train = {"train", "a.toml", "-s", "checkpoint.every=1", "-s", "checkpoint.keep=0"};
  succeed(train + set({"output.dir=whole"}));
  succeed(train + Arguments{"--stop-at-step", "10"});
  const Outcome outcome = run({"train", "run", "--resume", "-s", "optimizer.lr=1e30"});
  EXPECT_EQ(outcome.status, 1) << outcome;
  EXPECT_EQ(outcome.out, "");
  const auto newest = newest_checkpoint(path("run/checkpoints"));
  ASSERT_TRUE(newest);
  ASSERT_GE(newest->step, 10);
  ASSERT_LT(newest->step, 20);
  expect_contains(outcome.err,
                  {"step " + std::to_string(newest->step + 1) + ": the loss", "not finite", "optimizer.lr",
                   "run/checkpoints/" + checkpoint_name(newest->step), "meshtrain train run --resume"});
  EXPECT_EQ(metrics("run").size(), static_cast<std::size_t>(newest->step));
  // Back to before the mistake, and the run ends as if it had never been made.
  succeed(train + Arguments{"--resume-from", "run/checkpoints/" + checkpoint_name(10)});
  EXPECT_EQ(bits_of_metrics("run"), bits_of_metrics("whole"));
}

// --- Full disks --------------------------------------------------------------------------------------

// Files of at most `bytes`: what is written beyond fails as on a full disk (EFBIG instead of ENOSPC).
BeforeExec file_size_limit(rlim_t bytes) {
  return [bytes] {
    const rlimit limit = {bytes, bytes};
    setrlimit(RLIMIT_FSIZE, &limit);
  };
}

TEST_F(Errors, ADiskThatFillsUpLosesNothingThatWasSaved) {
  const Arguments train = {"train", "a.toml", "-s", "checkpoint.every=2"};
  succeed(train + set({"output.dir=whole"}));
  for (const std::string async : {"false", "true"}) {
    SCOPED_TRACE(async);
    fs::remove_all(path("run"));
    succeed(train + Arguments{"--stop-at-step", "4"});
    // Room for the metrics but not for the half megabyte of weights.
    const Outcome outcome =
        run({"train", "run", "--resume", "-s", "checkpoint.async=" + async}, file_size_limit(200'000));
    EXPECT_EQ(outcome.status, 1) << outcome;
    expect_contains(outcome.err, {"checkpoint of step 6", "model.safetensors", "File too large", "intact",
                                  checkpoint_name(2), checkpoint_name(4)});
    EXPECT_EQ(newest_checkpoint(path("run/checkpoints"))->step, 4);
    succeed({"train", "run", "--resume", "-s", "checkpoint.async=false"});
    EXPECT_EQ(bits_of_metrics("run"), bits_of_metrics("whole"));
  }
}

TEST_F(Errors, ARealFullDisk) {
  const std::string small = path("small");
  fs::create_directory(small);
  if (mount("none", small.c_str(), "tmpfs", 0, "size=4m") != 0) {
    GTEST_SKIP() << "no small disk to fill: mount said " << std::strerror(errno);
  }
  struct Unmount {
    std::string at;
    ~Unmount() { umount2(at.c_str(), MNT_DETACH); }
  } const unmount{small};
  // 1.6 MB a checkpoint: the third does not fit any more.
  const Arguments train = {
      "train", "a.toml", "-s", "output.dir=small/run", "-s", "checkpoint.every=2", "-s", "checkpoint.keep=0"};
  const Outcome outcome = run(train);
  EXPECT_EQ(outcome.status, 1) << outcome;
  expect_contains(outcome.err,
                  {"No space left on device", "checkpoint of step 6", "intact", checkpoint_name(4)});
  EXPECT_EQ(newest_checkpoint(small + "/run/checkpoints")->step, 4);
  // With room again it goes on, and keeps fewer.
  fs::remove_all(small + "/run/checkpoints/" + checkpoint_name(2));
  succeed({"train", "small/run", "--resume", "-s", "checkpoint.keep=1", "-s", "train.steps=8"});
  EXPECT_EQ(metrics("small/run").size(), 8U);
}

TEST_F(Errors, TokenizeOnAFullDiskLeavesNoHalfFile) {
  const Outcome outcome =
      run({"tokenize", "text.txt", "--out", "corpus", "--tokenizer", "bytes"}, file_size_limit(10'000));
  EXPECT_EQ(outcome.status, 1) << outcome;
  expect_one_paragraph(outcome, {"corpus", "File too large"});
  for (const auto& entry : fs::directory_iterator(dir_)) {
    EXPECT_FALSE(entry.path().filename().string().starts_with("corpus")) << entry.path();
  }
}

TEST_F(Errors, TokenizeMistakes) {
  const auto refused = [&](const Arguments& arguments, std::initializer_list<std::string_view> parts) {
    expect_refused(Arguments{"tokenize"} + arguments, parts);
    EXPECT_FALSE(exists("corpus.bin") || exists("corpus.idx"));
  };
  refused({"nope.txt", "--out", "corpus", "--tokenizer", "bytes"}, {"nope.txt"});
  refused({"text.txt", "--out", "corpus", "--tokenizer", "morse"}, {"morse", "bytes"});
  refused({"text.txt", "--out", "corpus"}, {"--tokenizer"});
  refused({"text.txt", "--tokenizer", "bytes"}, {"--out"});
  refused({"text.txt", "--out", "corpus.bin", "--tokenizer", "bytes"}, {"--out corpus"});
  refused({"text.txt", "--out", "text.txt/corpus", "--tokenizer", "bytes"}, {"text.txt/corpus"});
  write("empty.txt", "");
  refused({"empty.txt", "--out", "corpus", "--tokenizer", "bytes"}, {"empty.txt"});
  write("bad.json", "{");
  refused({"text.txt", "--out", "corpus", "--tokenizer", "bad.json"}, {"bad.json"});
}

// Folders that this user may not enter are named, with the reason: they are no bugs of ours.
TEST_F(Errors, ForeignFoldersAreNamed) {
  write_config("a.toml", "gpt2-tiny");
  fs::create_directories(path("foreign/run/checkpoints"));
  fs::permissions(path("foreign"), fs::perms::none);
  fs::permissions(dir_, fs::perms::all);
  const bool is_root = geteuid() == 0;
  const BeforeExec as_nobody = [is_root] {
    if (is_root && (setgid(65534) != 0 || setuid(65534) != 0)) _exit(99);
  };
  if (run({"--version"}, as_nobody).status != 0) {
    fs::permissions(path("foreign"), fs::perms::owner_all);
    GTEST_SKIP() << "the program lies where another user may not enter";
  }
  for (const Arguments& arguments :
       {Arguments{"eval", "foreign/run"},
        {"generate", "foreign/run"},
        {"train", "foreign/run", "--resume"},
        {"train", "foreign/a.toml"},
        {"ckpt", "inspect", "foreign/run"},
        {"ckpt", "verify", "foreign/run"},
        {"plan", "foreign/run"},
        {"tokenize", "foreign/text.txt", "--out", "tokens", "--tokenizer", "bytes"},
        {"tokenize", "text.txt", "--out", "foreign/tokens", "--tokenizer", "bytes"},
        {"train", "a.toml", "-s", "data.train=foreign/text.txt"},
        {"train", "a.toml", "-s", "output.dir=foreign/run"},
        {"train", "a.toml", "-s", "checkpoint.dir=foreign/saved"},
        {"train", "a.toml", "-s", "model.from=foreign/run"}}) {
    SCOPED_TRACE(testing::PrintToString(arguments));
    const Outcome outcome = run(arguments, as_nobody);
    EXPECT_EQ(outcome.status, 2) << outcome;
    expect_contains(outcome.err, {"foreign"});
    EXPECT_EQ(outcome.err.find("unexpected"), std::string::npos) << outcome;
  }
  fs::permissions(path("foreign"), fs::perms::owner_all);
}

// What is printed arrives, or the command fails.
TEST_F(Errors, AFullStandardOutputIsAFailure) {
  write_config("a.toml", "gpt2-tiny");
  succeed({"train", "a.toml"});
  const BeforeExec full = [] {
    const int device = open("/dev/full", O_WRONLY);
    if (device < 0 || dup2(device, STDOUT_FILENO) < 0) _exit(99);
  };
  for (const Arguments& arguments :
       {Arguments{"plan", "a.toml"},
        {"plan", "a.toml", "--json"},
        {"eval", "run", "--data", "text.txt"},
        {"eval", "run", "--json", "--data", "text.txt"},
        {"generate", "run", "--tokens", "3"},
        {"ckpt", "inspect", "run"},
        {"ckpt", "digest", "run"},
        {"ckpt", "verify", "run"},
        {"--help"},
        {"train", "--help"},
        {"--version"},
        {"bench", "matmul", "--m", "64", "--n", "64", "--k", "64", "--repeats", "1"},
        {"train", "a.toml", "-s", "output.dir=one"},
        {"train", "a.toml", "-s", "output.dir=two", "--ranks", "2"},
        {"train", "a.toml", "-s", "output.dir=three", "--ranks", "2", "--ranks-as", "threads"},
        {"bench", "train", "--config", "a.toml", "--steps", "1", "--peak-tflops", "1", "--ranks", "2"}}) {
    SCOPED_TRACE(testing::PrintToString(arguments));
    const Outcome outcome = run(arguments, full);
    EXPECT_EQ(outcome.status, 1) << outcome;
    EXPECT_NE(outcome.err, "");
    EXPECT_EQ(outcome.err.find("unexpected"), std::string::npos) << outcome;
  }
}

// Files that a command opens never take the numbers of streams that its parent closed.
TEST_F(Errors, ClosedStreamsAreNotMistakenForFiles) {
  write_config("a.toml", "gpt2-tiny");
  succeed({"train", "a.toml", "-s", "output.dir=whole"});
  for (const std::string ranks : {"1", "2"}) {
    for (const int closed : {1, 2, 4, 3, 5, 6, 7}) {  // bits: stdin, stdout, stderr
      SCOPED_TRACE(ranks + " ranks, closed " + std::to_string(closed));
      fs::remove_all(path("run"));
      const Outcome outcome =
          run({"train", "a.toml", "--ranks", ranks, "-s", "numerics.reduction=tree"}, [closed] {
            for (int stream = 0; stream < 3; ++stream) {
              if ((closed >> stream & 1) != 0) close(stream);
            }
          });
      EXPECT_EQ(outcome.status, 0) << outcome;
      for (const nlohmann::json& line : metrics("run")) EXPECT_TRUE(line.contains("step")) << line;
      EXPECT_EQ(metrics("run").size(), 20U);
      EXPECT_EQ(read("run/metrics.jsonl").find("loss 5"), std::string::npos) << "progress in the metrics";
      EXPECT_EQ(newest_checkpoint(path("run/checkpoints"))->step, 20);
    }
  }
}

// As other programs do: `meshtrain plan CONFIG | head -1` says nothing.
TEST_F(Errors, AReaderThatWentAwayEndsACommandInSilence) {
  write_config("a.toml", "gpt2-tiny");
  const BeforeExec no_reader = [] {
    int ends[2];
    if (pipe(ends) != 0 || dup2(ends[1], STDOUT_FILENO) < 0) _exit(99);
    close(ends[0]);
    close(ends[1]);
  };
  for (const Arguments& arguments : {Arguments{"plan", "a.toml"}, {"plan", "a.toml", "--json"}, {"--help"}}) {
    const Outcome outcome = run(arguments, no_reader);
    EXPECT_EQ(outcome.status, -SIGPIPE) << outcome;
    EXPECT_EQ(outcome.err, "");
  }
}

}  // namespace
}  // namespace meshtrain
