// SPDX-License-Identifier: Apache-2.0
// Errors that all ranks of a job meet alike, at the same place. No rank waits for another then, so
// the job ends in order, with the error's own exit code, and one rank says why.
#pragma once
#include <exception>
#include <functional>

#include "quatrain/comm/communicator.h"

namespace quatrain::apps {

class AgreedError : public std::exception {
 public:
  explicit AgreedError(std::exception_ptr cause) : cause_(std::move(cause)) {}
  const char* what() const noexcept override { return "all ranks have failed alike"; }
  const std::exception_ptr& cause() const { return cause_; }

 private:
  std::exception_ptr cause_;
};

// Runs `f`, whose errors of configuration, data and storage are the same on every rank, and throws
// them as AgreedError.
void agreed(const std::function<void()>& f);

// What a rank returns when `f` throws an AgreedError: rank 0 has said why.
int ending_together(const Communicator& world, const std::function<int()>& f);

}  // namespace quatrain::apps
