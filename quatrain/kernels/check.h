// SPDX-License-Identifier: Apache-2.0
// The project's CHECK in files that also include torch, whose logging header defines another one.
// Include it in place of base/check.h.
#pragma once
#include <c10/util/Logging.h>
#include "quatrain/base/check.h"
