// Several hosts: network namespaces with host names of their own, on a bridge of their own, where mpirun starts
// ranks that meet over TCP. The bits are those of one host, and a lost host or network is an error.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>

#include <cerrno>
#include <cstring>
#include <regex>

#include "checkpoint/checkpoint_folder.h"
#include "comm/engines.h"
#include "launch/launch_testing.h"
#include "program.h"

namespace meshtrain {
namespace {

using Clock = std::chrono::steady_clock;

// Three hosts h1, h2, h3, and the one that mpirun runs on. Nothing outside the test's own namespaces sees them.
constexpr const char* kNetwork = R"(
  PATH=$PATH:/usr/sbin:/sbin
  mount --make-rprivate /
  mount -t tmpfs none /run   # where ip(8) keeps the names of its namespaces
  mount -t tmpfs none /dev/shm   # Open MPI names its files there after process numbers, which recur in namespaces
  hostname head
  ip link set lo up
  ip link add switch type bridge
  ip address add 10.77.0.254/24 dev switch
  ip link set switch up
  for i in 1 2 3; do
    ip netns add h$i
    ip link add h$i type veth peer name eth0 netns h$i
    ip link set h$i master switch up
    ip -netns h$i link set lo up
    ip -netns h$i address add 10.77.0.$i/24 dev eth0
    ip -netns h$i link set eth0 up
  done
)";

// In place of ssh: the host, then the words of a command line.
constexpr const char* kAgent = R"(#!/bin/sh
host=$1
shift
exec nsenter --net=/run/netns/$host unshare --uts sh -c 'hostname "$0"; exec sh -c "$1"' "$host" "$*"
)";

void write_for_self(const char* file, const std::string& text) {
  write_file(std::string("/proc/self/") + file, text);
}

// This process as root of its own network, mounts and host name, which end with it. What is not permitted, if
// anything.
std::string unshare_all() {
  const uid_t user = geteuid();
  const gid_t group = getegid();
  const int own_root = user != 0 ? CLONE_NEWUSER : 0;
  if (unshare(own_root | CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWUTS) != 0) {
    return std::string("namespaces are not permitted: ") + std::strerror(errno);
  }
  if (own_root != 0) {
    write_for_self("setgroups", "deny");
    write_for_self("uid_map", "0 " + std::to_string(user) + " 1");
    write_for_self("gid_map", "0 " + std::to_string(group) + " 1");
  }
  return "";
}

class Hosts : public ProgramTest {
 protected:
  void SetUp() override {
    if (!has_mpi()) GTEST_SKIP() << "this build has no MPI library";
    mpirun_ = find_program("mpirun");
    if (mpirun_.empty()) GTEST_SKIP() << "mpirun is not in PATH (Debian: openmpi-bin)";
    if (const std::string refusal = unshare_all(); !refusal.empty()) GTEST_SKIP() << refusal;
    const Outcome network = shell(kNetwork);
    if (network.status != 0) GTEST_SKIP() << "no network of its own (Debian: iproute2): " << network.err;
    write("agent", kAgent);
    fs::permissions(path("agent"), fs::perms::owner_all);
    fs::create_directory(path("tmp"));
    // What the library itself does is not the matter here.
    setenv("ASAN_OPTIONS", "detect_leaks=0", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    write_config("a.toml", "gpt2-tiny");
  }

  Outcome shell(const std::string& script) const {
    fs::create_directories(path("shell"));  // where its output is, since another program's is in dir_
    return Process("/bin/sh", {"-e", "-c", script}, path("shell")).finish();
  }

  static Arguments train(const std::vector<std::string>& keys) {
    return Arguments{"train", "a.toml"} +
           set({"train.steps=6", "train.global_batch=8", "train.micro_batch=1"}) + set(keys);
  }

  // Ranks on `hosts`, as in "h1:2,h2:2". In a process namespace of their own, so that whatever happens nobody
  // stays behind.
  std::unique_ptr<Process> start(const std::string& hosts, const Arguments& options,
                                 const Arguments& command) const {
    const std::string network = "10.77.0.0/24";
    Arguments words = {"--pid", "--fork", "--kill-child", mpirun_, "--host", hosts, "--bind-to", "none"};
    for (const auto& [name, value] :
         std::vector<std::pair<std::string, std::string>>{{"plm_rsh_agent", path("agent").string()},
                                                          {"orte_tmpdir_base", path("tmp").string()},
                                                          {"btl_tcp_if_include", network},
                                                          {"oob_tcp_if_include", network}}) {
      words = words + Arguments{"--mca", name, value};
    }
    return std::make_unique<Process>(find_program("unshare"),
                                     words + options + Arguments{MESHTRAIN_BINARY} + command, dir_,
                                     [] { prctl(PR_SET_PDEATHSIG, SIGKILL); });
  }

  Digests tensors(const std::string& folder, std::int64_t step) const {
    return tensors_of(folder + "/checkpoints/" + checkpoint_name(step));
  }
  void expect_same_bits(const std::string& folder, const std::string& expected, std::int64_t step) const {
    EXPECT_EQ(bits_of_metrics(folder), bits_of_metrics(expected)) << folder;
    EXPECT_TRUE(tensors(folder, step) == tensors(expected, step)) << folder;
  }

  // Bytes that `host` has sent into the network.
  static std::int64_t sent_by(const std::string& host) {
    std::ifstream file("/proc/self/net/dev");  // of this network namespace
    for (std::string word; file >> word;) {
      std::int64_t received_here = 0;
      if (word == host + ":" && file >> received_here) return received_here;
    }
    throw std::runtime_error("no card " + host);
  }

  // A run on h1 and h2 in the middle of its work.
  std::unique_ptr<Process> start_long_run(const std::string& deadline, const Arguments& options = {}) const {
    std::unique_ptr<Process> process = start("h1:2,h2:2", options, train(long_run("run", deadline)));
    if (!process->wait_until([&] { return metrics("run").size() >= 12; })) {
      throw std::runtime_error("no twelve steps: " + read(".stderr"));
    }
    return process;
  }
  static std::vector<std::string> long_run(const std::string& folder, const std::string& deadline) {
    return {"train.steps=100000", "checkpoint.every=5", "numerics.reduction=tree", "mesh.deadline=" + deadline,
            "output.dir=" + folder};
  }

  // What the message says: on this host, as many ranks. Then everything is as if nothing had happened.
  void expect_goes_on_here() const {
    const auto end = static_cast<std::int64_t>(metrics("run").size()) + 5;
    const Arguments until = {"--stop-at-step", std::to_string(end)};
    expect_contains(succeed(Arguments{"train", "run", "--resume"} + until).err,
                    {"resuming from run/checkpoints/step-"});
    EXPECT_EQ(read_json("run/summary.json")["engine"], "shm");
    succeed(train(long_run("one", "300")) + until);
    expect_same_bits("run", "one", end);
  }

  // Whether a rank still runs on the host.
  bool has_ranks(const std::string& host) const {
    const Outcome names = shell("for p in $(ip netns pids " + host + "); do cat /proc/$p/comm || true; done");
    return names.out.find("meshtrain") != std::string::npos;
  }

  std::string mpirun_;
};

TEST_F(Hosts, GiveTheBitsOfOne) {
  succeed(train({"numerics.reduction=tree", "output.dir=one"}));
  int number = 0;
  const auto run_on = [&](const std::string& hosts, const Arguments& options, const Arguments& command) {
    const std::string folder = "run" + std::to_string(++number);
    const Outcome outcome = start(hosts, options, command + set({"output.dir=" + folder}))->finish();
    EXPECT_EQ(outcome.status, 0) << outcome;
    const nlohmann::json summary = read_json(folder + "/summary.json");
    EXPECT_EQ(summary["engine"], "mpi");
    EXPECT_EQ(summary["ranks"].size(), 4);
    return folder;
  };
  for (const std::string zero : {"0", "3"}) {
    SCOPED_TRACE(zero);
    const std::int64_t sent_before = sent_by("h1");
    const std::string tree = run_on("h1:2,h2:2", {}, train({"numerics.reduction=tree", "mesh.zero=" + zero}));
    // Without the sum of the other host's gradients, or its share of it, no host knows the whole sum.
    const auto gradients = read_json(tree + "/summary.json")["parameters"].get<std::int64_t>() * 4 * 6;
    EXPECT_GT(sent_by("h1") - sent_before, gradients);
    expect_same_bits(tree, "one", 6);

    succeed(train({"mesh.zero=" + zero, "output.dir=local"}) + Arguments{"--ranks", "4"});
    EXPECT_EQ(read_json("local/summary.json")["engine"], "shm");
    expect_same_bits(run_on("h1:2,h2:1,h3:1", {}, train({"mesh.zero=" + zero})), "local", 6);
    fs::remove_all(path("local"));
  }
  // Neighbours in rank on different hosts.
  expect_same_bits(run_on("h1:2,h2:2", {"--map-by", "node"}, train({"numerics.reduction=tree", "mesh.zero=2"})),
                   "one", 6);
}

TEST_F(Hosts, ACutNetworkIsADeadlineOnBothSides) {
  const auto process = start_long_run("4");
  EXPECT_TRUE(has_ranks("h1") && has_ranks("h2"));
  shell("ip link set h2 down");
  const auto begin = Clock::now();
  EXPECT_TRUE(process->wait_until([&] { return !has_ranks("h1") && !has_ranks("h2"); }));
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(30));
  // mpirun itself waits for its daemon on h2 until TCP gives up.
  shell("echo 1 > /proc/sys/net/ipv4/tcp_retries2");
  const Outcome outcome = process->finish();
  EXPECT_EQ(outcome.status, 1) << outcome;
  const std::regex expected(
      "meshtrain: step \\d+: [a-z-]+ .*, operation \\d+ of group \"[a-z]+\" \\(ranks 0, 1, 2, 3\\): .*"
      "ranks? (2|3|2, 3)\\. The deadline of 4 s has passed\\. The newest checkpoint is "
      "run/checkpoints/step-\\d+; to resume from it: `meshtrain train run --resume`\n");
  EXPECT_TRUE(std::regex_search(outcome.err, expected)) << outcome;
  expect_goes_on_here();
}

// As docs/clusters.md says: mpirun looks whether its daemons are there.
TEST_F(Hosts, ACutNetworkIsNamedByMpirunThatLooksForIt) {
  const auto process =
      start_long_run("60", {"--mca", "oob_tcp_keepalive_time", "1", "--mca", "oob_tcp_keepalive_intvl", "1",
                            "--mca", "oob_tcp_keepalive_probes", "1"});
  shell("ip link set h2 down");
  const auto begin = Clock::now();
  const Outcome outcome = process->finish();
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(30));
  EXPECT_NE(outcome.status, 0) << outcome;
  expect_contains(outcome.err, {"lost communication", "on node h2"});
  expect_goes_on_here();
}

TEST_F(Hosts, ADeadHostEndsTheRun) {
  const auto process = start_long_run("60");
  shell("kill -KILL $(ip netns pids h2)");
  const auto begin = Clock::now();
  const Outcome outcome = process->finish();
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(30));
  EXPECT_NE(outcome.status, 0) << outcome;  // (Open MPI does not always say which host it lost)
  expect_goes_on_here();
}

TEST_F(Hosts, SaveAndStopOnUsr1) {
  const auto process = start_long_run("60");
  const std::vector<pid_t> mpirun = children_of(process->pid());
  ASSERT_EQ(mpirun.size(), 1U);
  kill(mpirun.front(), SIGUSR1);
  const Outcome outcome = process->finish();
  EXPECT_EQ(outcome.status, 0) << outcome;
  const auto step = static_cast<std::int64_t>(metrics("run").size());
  expect_contains(outcome.out, {"stopped after step " + std::to_string(step), "meshtrain train run --resume"});
  expect_goes_on_here();
}

}  // namespace
}  // namespace meshtrain
