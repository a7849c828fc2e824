#include "invattn/core/stop_request.h"

#include <gtest/gtest.h>

#include <string>

namespace invattn {
namespace {

TEST(StopRequest, AsksThePollAndNobodyElse) {
  EXPECT_FALSE(stop_requested());
  EXPECT_NO_THROW(end_where_requested());
  set_stop_poll([] { return true; });
  EXPECT_TRUE(stop_requested());
  try {
    end_where_requested();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Stopped& stopped) {
    EXPECT_NE(std::string(stopped.what()).find("asked to stop"), std::string::npos);
  }
  set_stop_poll([] { return false; });
  EXPECT_NO_THROW(end_where_requested());
  set_stop_poll(nullptr);
  EXPECT_FALSE(stop_requested());
}

}  // namespace
}  // namespace invattn
