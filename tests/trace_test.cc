// `meshtrain train --trace`: what every rank did, on one clock.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "program.h"

namespace meshtrain {
namespace {

struct Event {
  std::string name;
  std::string kind;
  double begin = 0.0;  // µs
  double end = 0.0;
};

struct RankTrace {
  std::string name;
  std::map<std::string, std::vector<Event>> tracks;

  std::vector<Event> named(const std::string& track, const std::string& prefix) const {
    std::vector<Event> found;
    for (const Event& event : tracks.at(track)) {
      if (event.name.starts_with(prefix)) found.push_back(event);
    }
    return found;
  }
  bool has(const std::string& track, const std::string& kind) const {
    const std::vector<Event>& events = tracks.at(track);
    return std::any_of(events.begin(), events.end(), [&](const Event& event) { return event.kind == kind; });
  }
};

class TraceTest : public ProgramTest {
 protected:
  // Trains on `keys`, and parses the trace by rank.
  std::map<int, RankTrace> trace_of(const Arguments& words) {
    write_config("a.toml", "gpt2-tiny");
    succeed(Arguments{"train", "a.toml", "--trace", "-s", "train.steps=4", "-s", "train.micro_batch=1"} +
            words);
    return parse(read_json("run/trace.json"));
  }

  static std::map<int, RankTrace> parse(const nlohmann::json& json) {
    std::map<int, RankTrace> ranks;
    std::map<int, std::string> tracks;
    for (const nlohmann::json& event : json.at("traceEvents")) {
      RankTrace& rank = ranks[event.at("pid")];
      const int track = event.at("tid");
      if (event.at("ph") == "M") {
        if (event.at("name") == "process_name") rank.name = event.at("args").at("name");
        if (event.at("name") == "thread_name") tracks[track] = event.at("args").at("name");
        continue;
      }
      EXPECT_EQ(event.at("ph"), "X");
      const double begin = event.at("ts");
      EXPECT_GE(begin, 0.0);
      EXPECT_GE(event.at("dur").get<double>(), 0.0);
      rank.tracks[tracks.at(track)].push_back({.name = event.at("name"),
                                               .kind = event.at("cat"),
                                               .begin = begin,
                                               .end = begin + event.at("dur").get<double>()});
    }
    return ranks;
  }

  // Two events of a track are apart, or one lies inside the other, and comes later in the file.
  static void expect_nested(const std::vector<Event>& events) {
    std::vector<Event> open;
    for (const Event& event : events) {
      // Sums of decimals: off by less than their last digit.
      constexpr double kTiny = 1e-4;
      while (!open.empty() && open.back().end <= event.begin + kTiny) open.pop_back();
      if (open.empty()) {
        open.push_back(event);
        continue;
      }
      EXPECT_GE(event.begin, open.back().begin) << event.name << " in " << open.back().name;
      EXPECT_LE(event.end, open.back().end + kTiny) << event.name << " in " << open.back().name;
      open.push_back(event);
    }
  }
};

TEST_F(TraceTest, HasEveryRanksWorkOnOneClock) {
  const auto ranks = trace_of({"--ranks", "2", "-s", "mesh.zero=1", "-s", "data.valid=text.txt"});
  ASSERT_EQ(ranks.size(), 2U);
  EXPECT_EQ(ranks.at(0).name, "rank 0 (dp 0)");
  EXPECT_EQ(ranks.at(1).name, "rank 1 (dp 1)");
  for (const auto& [number, rank] : ranks) {
    SCOPED_TRACE(number);
    ASSERT_EQ(rank.tracks.size(), 2U);
    for (const auto& [name, events] : rank.tracks) expect_nested(events);
    EXPECT_TRUE(rank.has("compute", "compute"));
    EXPECT_TRUE(rank.has("compute", "communication"));
    EXPECT_TRUE(rank.has("dp communication", "communication"));
    EXPECT_FALSE(rank.has("dp communication", "compute"));
    // 4 sequences on 2 ranks, one at a time.
    EXPECT_EQ(rank.named("compute", "step ").size(), 4U);
    EXPECT_EQ(rank.named("compute", "F").size(), 8U);
    EXPECT_EQ(rank.named("compute", "B1").size(), 4U);
    EXPECT_EQ(rank.named("compute", "optimizer").size(), 4U);
    EXPECT_EQ(rank.named("compute", "gradient norm").size(), 4U);
    EXPECT_EQ(rank.named("compute", "evaluation").size(), 1U);
    EXPECT_EQ(rank.named("compute", "checkpoint").size(), 1U);
    EXPECT_FALSE(rank.named("compute", "all-reduce control ").empty());
    EXPECT_FALSE(rank.named("dp communication", "reduce gradients").empty());
    EXPECT_FALSE(rank.named("dp communication", "gather weights").empty());
    EXPECT_FALSE(rank.named("dp communication", "reduce-scatter dp ").empty());
  }
  // Ranks meet within each step.
  const std::vector<Event> first = ranks.at(0).named("compute", "step ");
  const std::vector<Event> second = ranks.at(1).named("compute", "step ");
  for (std::size_t step = 0; step < 4; ++step) {
    EXPECT_EQ(first[step].name, "step " + std::to_string(step + 1));
    EXPECT_LT(first[step].begin, second[step].end);
    EXPECT_LT(second[step].begin, first[step].end);
  }
  // The shape of a step.
  const Event step = first[1];
  const Event forward = ranks.at(0).named("compute", "F1")[1];
  const Event backward = ranks.at(0).named("compute", "B1")[1];
  const Event optimizer = ranks.at(0).named("compute", "optimizer")[1];
  EXPECT_LE(step.begin, forward.begin);
  EXPECT_LE(forward.end, backward.begin);
  EXPECT_LE(backward.end, optimizer.begin);
  EXPECT_LE(optimizer.end, step.end);
}

TEST_F(TraceTest, ThreadsAreRanksToo) {
  const auto ranks = trace_of({"--ranks", "4", "--ranks-as", "threads", "-s", "mesh.zero=3"});
  ASSERT_EQ(ranks.size(), 4U);
  for (const auto& [number, rank] : ranks) {
    SCOPED_TRACE(number);
    EXPECT_EQ(rank.named("compute", "step ").size(), 4U);
    EXPECT_FALSE(rank.named("dp communication", "all-gather dp ").empty());
    for (const auto& [name, events] : rank.tracks) expect_nested(events);
  }
}

TEST_F(TraceTest, WithoutOverlapEverythingIsOnOneTrack) {
  const auto ranks = trace_of({"--ranks", "2", "-s", "mesh.overlap=false"});
  for (const auto& [number, rank] : ranks) {
    ASSERT_EQ(rank.tracks.size(), 1U);
    EXPECT_FALSE(rank.named("compute", "all-reduce dp ").empty());
    EXPECT_FALSE(rank.has("compute", "wait"));
    expect_nested(rank.tracks.at("compute"));
  }
}

TEST_F(TraceTest, OneRankHasATrackOfItsOwn) {
  const auto ranks = trace_of({});
  ASSERT_EQ(ranks.size(), 1U);
  EXPECT_EQ(ranks.at(0).name, "rank 0");
  ASSERT_EQ(ranks.at(0).tracks.size(), 1U);
  EXPECT_FALSE(ranks.at(0).has("compute", "communication"));
  EXPECT_EQ(ranks.at(0).named("compute", "step ").size(), 4U);
}

TEST_F(TraceTest, IsThereWhenAskedForAndChangesNoBit) {
  write_config("a.toml", "gpt2-tiny");
  succeed({"train", "a.toml", "--ranks", "2", "-s", "train.steps=4"});
  EXPECT_FALSE(exists("run/trace.json"));
  const auto metrics = bits_of_metrics("run");
  succeed({"train", "a.toml", "--ranks", "2", "-s", "train.steps=4", "--trace"});
  EXPECT_TRUE(exists("run/trace.json"));
  EXPECT_EQ(bits_of_metrics("run"), metrics);
}

// A resumed run's trace is of what it did itself.
TEST_F(TraceTest, ARunThatGoesOnReplacesIt) {
  write_config("a.toml", "gpt2-tiny");
  succeed({"train", "a.toml", "--trace", "--stop-at-step", "2"});
  succeed({"train", "run", "--resume", "--trace", "--stop-at-step", "5"});
  std::set<std::string> steps;
  for (const Event& event : parse(read_json("run/trace.json")).at(0).named("compute", "step ")) {
    steps.insert(event.name);
  }
  EXPECT_EQ(steps, (std::set<std::string>{"step 3", "step 4", "step 5"}));
}

TEST_F(TraceTest, AFailedRunLeavesThatOfTheRankThatLeads) {
  write_config("a.toml", "gpt2-tiny");
  const Outcome failed = run({"train", "a.toml", "--ranks", "2", "--trace", "-s", "optimizer.lr=1e30", "-s",
                              "optimizer.schedule=constant", "-s", "optimizer.warmup=0"});
  EXPECT_EQ(failed.status, 1) << failed;
  const auto ranks = parse(read_json("run/trace.json"));
  ASSERT_EQ(ranks.size(), 1U);
  const std::vector<Event> steps = ranks.at(0).named("compute", "step ");
  ASSERT_GE(steps.size(), 2U);
  EXPECT_LT(steps.back().begin, steps.back().end);
  for (const auto& [name, events] : ranks.at(0).tracks) expect_nested(events);
}

// A mistake that is found before the first step must not touch what an earlier run left.
TEST_F(TraceTest, ARefusedRunLeavesTheEarlierTrace) {
  write_config("a.toml", "gpt2-tiny");
  succeed({"train", "a.toml", "--trace", "-s", "train.steps=4"});
  const std::string before = read("run/trace.json");
  const Outcome refused = run({"train", "run", "--resume", "--trace"});
  EXPECT_EQ(refused.status, 2) << refused;
  EXPECT_EQ(read("run/trace.json"), before);
}

}  // namespace
}  // namespace meshtrain
