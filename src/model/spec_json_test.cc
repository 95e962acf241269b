#include "model/spec_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace meshtrain {
namespace {

using Json = nlohmann::json;

TEST(SpecJson, RoundTripsEveryPresetThroughText) {
  for (const std::string& name : preset_names()) {
    ModelSpec spec = preset(name);
    if (spec.vocab == 0) spec.vocab = 256;
    spec.init_std = 0.1 + 0.2;
    const std::string text = spec_to_json(spec).dump();
    EXPECT_EQ(spec_from_json(Json::parse(text), "manifest.json"), spec) << name;
  }
}

TEST(SpecJson, RefusesWhatIsNotAModel) {
  ModelSpec spec = preset("llama-tiny");
  spec.vocab = 256;
  const Json good = spec_to_json(spec);
  const auto refused = [](const Json& json, std::string_view part) {
    try {
      spec_from_json(json, "manifest.json");
      ADD_FAILURE() << json;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find("manifest.json"), std::string::npos);
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  for (const auto& [key, value] : good.items()) {
    Json bad = good;
    bad.erase(key);
    refused(bad, key);
    bad[key] = Json::array();
    refused(bad, key);
  }
  Json bad = good;
  bad["heads"] = 18446744073709551615U;
  refused(bad, "heads");
  bad["heads"] = 4.5;
  refused(bad, "heads");
  bad["heads"] = 3;
  refused(bad, "model.kv_heads");
  refused(Json(), "arch");
  refused(Json::array(), "arch");
}

}  // namespace
}  // namespace meshtrain
