// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "quatrain/comm/conformance.h"
#include "quatrain/comm/self/self.h"

namespace quatrain {
namespace {

TEST(Self, Conforms) { check_conformance(*make_self_communicator(), 1, 100); }

}  // namespace
}  // namespace quatrain
