#include "optim/loss_scale.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"

namespace meshtrain {
namespace {

TEST(LossScalerTest, HalvesAndSkipsOnOverflow) {
  LossScaler scaler(65536.0, 2000);
  EXPECT_TRUE(scaler.update(true));
  EXPECT_EQ(scaler.scale(), 65536.0);
  EXPECT_FALSE(scaler.update(false));
  EXPECT_EQ(scaler.scale(), 32768.0);
  EXPECT_FALSE(scaler.update(false));
  EXPECT_EQ(scaler.scale(), 16384.0);
  EXPECT_TRUE(scaler.update(true));
  EXPECT_EQ(scaler.scale(), 16384.0);
}

TEST(LossScalerTest, DoublesAfterAWindowWithoutOverflow) {
  LossScaler scaler(8.0, 3);
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(scaler.update(true));
    EXPECT_EQ(scaler.scale(), 8.0);
  }
  EXPECT_TRUE(scaler.update(true));
  EXPECT_EQ(scaler.scale(), 16.0);
  scaler.update(true);
  scaler.update(true);
  scaler.update(false);  // starts the window anew
  EXPECT_EQ(scaler.scale(), 8.0);
  scaler.update(true);
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 8.0);
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 16.0);
}

TEST(LossScalerTest, StopsGrowing) {
  LossScaler scaler(LossScaler::kLargest / 2, 1);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(scaler.update(true));
  EXPECT_EQ(scaler.scale(), 16777216.0);
}

TEST(LossScalerTest, EndlessOverflowIsAnError) {
  LossScaler scaler(1.0, 10);
  for (int i = 0; i < 14; ++i) EXPECT_FALSE(scaler.update(false));
  EXPECT_EQ(scaler.scale(), LossScaler::kSmallest);
  EXPECT_THROW(scaler.update(false), RunError);
  EXPECT_TRUE(scaler.update(true));
}

TEST(LossScalerTest, ResumesWhereItWas) {
  LossScaler one(1024.0, 5);
  one.update(false);
  for (int i = 0; i < 3; ++i) one.update(true);
  LossScaler other(65536.0, 5);
  other.restore(one.state());
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(one.state(), other.state());
    EXPECT_EQ(one.update(true), other.update(true));
  }
  EXPECT_EQ(other.scale(), 1024.0);
  EXPECT_THROW(other.restore({0.0, 0}), RunError);
  EXPECT_THROW(other.restore({1.0, -1}), RunError);
  EXPECT_THROW(other.restore({std::nan(""), 0}), RunError);
}

TEST(LossScalerTest, RefusesBadSettings) {
  EXPECT_THROW(LossScaler(0.0, 10), UserError);
  EXPECT_THROW(LossScaler(-2.0, 10), UserError);
  EXPECT_THROW(LossScaler(std::nan(""), 10), UserError);
  EXPECT_THROW(LossScaler(std::numeric_limits<double>::infinity(), 10), UserError);
  EXPECT_THROW(LossScaler(1.0, 0), UserError);
}

TEST(ClipCoefficientTest, LeavesSmallGradientsAlone) {
  EXPECT_EQ(clip_coefficient(0.0, 1.0), 1.0F);
  EXPECT_EQ(clip_coefficient(0.5, 1.0), 1.0F);
  EXPECT_EQ(clip_coefficient(1e30, 0.0), 1.0F);
}

// From torch.nn.utils.clip_grad_norm_ of PyTorch 2.5.1: what it multiplied a second, tiny gradient by.
TEST(ClipCoefficientTest, IsPyTorchs) {
  EXPECT_EQ(clip_coefficient(1.0, 1.0), 0x1.ffffep-1F);
  EXPECT_EQ(clip_coefficient(1.0000004768371582, 1.0), 0x1.ffffdp-1F);
  EXPECT_EQ(clip_coefficient(1.5, 1.0), 0x1.555548p-1F);
  EXPECT_EQ(clip_coefficient(2.0, 1.0), 0x1.fffffp-2F);
  EXPECT_EQ(clip_coefficient(4.767611980438232, 1.0), 0x1.ad90a8p-3F);
  EXPECT_EQ(clip_coefficient(123.45600128173828, 0.3), 0x1.3e81cap-9F);
  EXPECT_EQ(clip_coefficient(0.0010000000474974513, 0.0001), 0x1.9930d6p-4F);
}

}  // namespace
}  // namespace meshtrain
