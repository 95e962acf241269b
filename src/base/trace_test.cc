#include "base/trace.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "base/stopwatch.h"

namespace meshtrain {
namespace {

std::vector<std::string> texts(const TraceTrack& track) {
  std::vector<std::string> result;
  for (const TraceEvent& event : track.events()) result.push_back(track.text_of(event));
  return result;
}

TEST(Trace, SpansNest) {
  TraceTrack track("compute", 100);
  const std::int64_t before = steady_nanoseconds();
  {
    const TraceSpan step(&track, TraceKind::kCompute, "step {}", 7);
    { const TraceSpan forward(&track, TraceKind::kCompute, "forward"); }
    const TraceSpan wait(&track, TraceKind::kWait, "wait for {}", std::string("dp"));
  }
  const std::int64_t after = steady_nanoseconds();
  ASSERT_EQ(texts(track), (std::vector<std::string>{"step 7", "forward", "wait for dp"}));
  const TraceEvent& step = track.events()[0];
  const TraceEvent& forward = track.events()[1];
  const TraceEvent& wait = track.events()[2];
  EXPECT_EQ(step.kind, TraceKind::kCompute);
  EXPECT_EQ(wait.kind, TraceKind::kWait);
  EXPECT_LE(before, step.begin_ns);
  EXPECT_LE(step.begin_ns, forward.begin_ns);
  EXPECT_LE(forward.begin_ns, forward.end_ns);
  EXPECT_LE(forward.end_ns, wait.begin_ns);
  EXPECT_LE(wait.begin_ns, wait.end_ns);
  EXPECT_LE(wait.end_ns, step.end_ns);
  EXPECT_LE(step.end_ns, after);
}

struct Unformattable {};

}  // namespace
}  // namespace meshtrain

template <>
struct fmt::formatter<meshtrain::Unformattable> {
  constexpr auto parse(fmt::format_parse_context& context) { return context.begin(); }
  template <class Context>
  auto format(const meshtrain::Unformattable&, Context& context) const -> decltype(context.out()) {
    throw std::runtime_error("formatted");
  }
};

namespace meshtrain {
namespace {

TEST(Trace, WithoutATrackNoNameIsFormatted) {
  EXPECT_NO_THROW(TraceSpan(nullptr, TraceKind::kCompute, "{}", Unformattable{}));
  TraceTrack track("compute", 1);
  EXPECT_THROW(TraceSpan(&track, TraceKind::kCompute, "{}", Unformattable{}), std::runtime_error);
}

TEST(Trace, AnExceptionEndsSpans) {
  TraceTrack track("compute", 100);
  try {
    const TraceSpan span(&track, TraceKind::kCompute, "fails");
    const std::int64_t begun = steady_nanoseconds();
    while (steady_nanoseconds() == begun) {
    }
    throw std::runtime_error("a lost rank");
  } catch (const std::runtime_error&) {
  }
  EXPECT_LT(track.events()[0].begin_ns, track.events()[0].end_ns);
}

TEST(Trace, KeepsTheFirstEventsAndCountsTheOthers) {
  Trace trace(3);
  TraceTrack& track = trace.track("compute");
  {
    const TraceSpan outer(&track, TraceKind::kCompute, "outer");
    for (int i = 0; i < 5; ++i) {
      const TraceSpan inner(&track, TraceKind::kCompute, "inner {}", i);
    }
  }
  EXPECT_EQ(texts(track), (std::vector<std::string>{"outer", "inner 0", "inner 1"}));
  EXPECT_LE(track.events()[2].end_ns, track.events()[0].end_ns);
  EXPECT_EQ(track.lost(), 3);
  { const TraceSpan other(&trace.track("dp"), TraceKind::kCommunication, "reduce"); }
  EXPECT_EQ(trace.track("dp").events().size(), 1U);
  EXPECT_EQ(trace.lost(), 3);
}

TEST(Trace, TracksStayWhereTheyAre) {
  Trace trace;
  TraceTrack* const first = &trace.track("compute");
  for (int i = 0; i < 50; ++i) trace.track(std::to_string(i));
  EXPECT_EQ(&trace.track("compute"), first);
  EXPECT_EQ(trace.tracks().size(), 51U);
  EXPECT_EQ(&trace.tracks().front(), first);
}

TEST(Trace, ANameIsKeptOnce) {
  TraceTrack track("compute", 100);
  for (int i = 0; i < 10; ++i) {
    const TraceSpan span(&track, TraceKind::kCompute, "F{}", i % 2);
  }
  EXPECT_EQ(&track.text_of(track.events()[0]), &track.text_of(track.events()[8]));
  EXPECT_EQ(track.text_of(track.events()[9]), "F1");
}

}  // namespace
}  // namespace meshtrain
