#include "train/bad_steps.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace meshtrain {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TrainConfig spikes_above(double factor, std::int64_t window) {
  TrainConfig train;
  train.norm_spike = factor;
  train.norm_spike_window = window;
  return train;
}

std::string reason_of(double loss, double norm, std::optional<double> threshold) {
  const std::optional<BadStep> bad = judge(loss, norm, threshold);
  return bad ? std::string(name_of(bad->reason)) : "good";
}

TEST(Judge, NothingButFiniteNumbersBelowTheThresholdIsGood) {
  EXPECT_EQ(reason_of(2.0, 1.0, {}), "good");
  EXPECT_EQ(reason_of(0.0, 0.0, {}), "good");
  EXPECT_EQ(reason_of(1e300, 1e300, {}), "good");
  EXPECT_EQ(reason_of(kNan, 1.0, {}), "loss not finite");
  EXPECT_EQ(reason_of(kInfinity, kNan, 1.0), "loss not finite");
  EXPECT_EQ(reason_of(2.0, kNan, {}), "gradient norm not finite");
  EXPECT_EQ(reason_of(2.0, kInfinity, 1.0), "gradient norm not finite");
  EXPECT_EQ(reason_of(2.0, 3.0, 3.0), "good");
  EXPECT_EQ(reason_of(2.0, std::nextafter(3.0, 4.0), 3.0), "gradient norm spike");
}

TEST(SpikeThreshold, IsAMultipleOfTheMeanOfTheLastNorms) {
  const std::vector<double> norms = {100.0, 1.0, 2.0, 6.0};
  EXPECT_EQ(spike_threshold(spikes_above(4.0, 3), norms), 12.0);
  EXPECT_EQ(spike_threshold(spikes_above(4.0, 1), norms), 24.0);
  EXPECT_EQ(spike_threshold(spikes_above(4.0, 4), norms), 109.0);
}

TEST(SpikeThreshold, ThereIsNoneBeforeTheWindowIsFull) {
  const std::vector<double> norms = {1.0, 2.0, 6.0};
  EXPECT_FALSE(spike_threshold(spikes_above(4.0, 4), norms));
  EXPECT_FALSE(spike_threshold(spikes_above(0.0, 2), norms)) << "off";
  EXPECT_FALSE(spike_threshold(spikes_above(4.0, 1), {}));
  const std::vector<double> zeros = {0.0, 0.0};
  EXPECT_FALSE(spike_threshold(spikes_above(4.0, 2), zeros)) << "any norm is many times nothing";
}

TEST(RememberNorm, KeepsAWindowAndNothingWhenOff) {
  BadStepRecord record;
  for (const double norm : {1.0, 2.0, 3.0, 4.0}) remember_norm(spikes_above(2.0, 3), norm, record);
  EXPECT_EQ(record.norms, (std::vector<double>{2.0, 3.0, 4.0}));
  remember_norm(spikes_above(2.0, 2), 5.0, record);  // a shorter one after a stop
  EXPECT_EQ(record.norms, (std::vector<double>{4.0, 5.0}));
  remember_norm(spikes_above(0.0, 3), 6.0, record);
  EXPECT_TRUE(record.norms.empty());
}

TEST(BadStepError, SaysWhatToDo) {
  const TrainConfig train = spikes_above(4.0, 20);
  const BadStepError spike({.reason = BadStepReason::kSpike, .loss = 2.0, .grad_norm = 50.0, .threshold = 12.5},
                           train);
  for (const char* part : {"(50)", "12.5", "train.norm_spike = 4", "last 20 steps", "train.on_bad_step"}) {
    EXPECT_NE(std::string(spike.what()).find(part), std::string::npos) << spike.what();
  }
  const BadStepError nan({.reason = BadStepReason::kLoss, .loss = kNan, .grad_norm = kNan, .threshold = {}},
                         train);
  EXPECT_NE(std::string(nan.what()).find("the loss (nan)"), std::string::npos) << nan.what();
  EXPECT_TRUE(std::isnan(nan.bad().loss));
}

TEST(BadStepRecord, ComesBackFromJsonTextToTheBit) {
  BadStepRecord record;
  record.rollbacks = 2;
  record.left_out = LeftOut({{48, 4}, {1'000'000'000'000, 8}});
  record.norms = {0.1, 1.0 / 3.0, 5e-324, 1.7976931348623157e308, 123456789.123456789};
  const nlohmann::json read = nlohmann::json::parse(to_json(record).dump());
  EXPECT_EQ(bad_steps_from_json(read, "step-1"), record);
  EXPECT_EQ(bad_steps_from_json(to_json(BadStepRecord{}), "step-1"), BadStepRecord{});
}

TEST(BadStepRecord, WhatIsImpossibleIsRefused) {
  const std::vector<std::string> damaged = {
      R"([])",
      R"({"rollbacks": 1, "left_out": []})",
      R"({"rollbacks": -1, "left_out": [], "norms": []})",
      R"({"rollbacks": 1, "left_out": [[4]], "norms": []})",
      R"({"rollbacks": 1, "left_out": [[4, 0]], "norms": []})",
      R"({"rollbacks": 1, "left_out": [[8, 4], [4, 4]], "norms": []})",
      R"({"rollbacks": 1, "left_out": [["a", 4]], "norms": []})",
      R"({"rollbacks": 1, "left_out": [], "norms": [null]})",
      R"({"rollbacks": 1, "left_out": [], "norms": [-1.0]})",
  };
  for (const std::string& text : damaged) {
    try {
      bad_steps_from_json(nlohmann::json::parse(text), "runs/x/step-00000001");
      ADD_FAILURE() << "accepted " << text;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find("runs/x/step-00000001"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace meshtrain
