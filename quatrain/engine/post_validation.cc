// SPDX-License-Identifier: Apache-2.0
#include "quatrain/engine/post_validation.h"

namespace quatrain {

NumberChain::NumberChain(Communicator& stages, const StepNumbers::Size& size)
    : stages_(stages), size_(size), whole_(size) {}

StepNumbers NumberChain::pass_on(StepNumbers own) {
  const int rank = stages_.rank();
  const int last = stages_.size() - 1;
  if (rank > 0) {
    const StepNumbers before(size_);
    stages_.recv(before.flat(), rank - 1).wait();
    own.add(before);
  }
  const auto send = [&](int to) {
    Work work = stages_.send(own.flat(), to);
    sent_.emplace_back(std::move(work), own);
  };
  if (rank < last) {
    send(rank + 1);
    whole_ = StepNumbers(size_);
    told_ = stages_.recv(whole_.flat(), last);
  } else {
    whole_ = own;
    for (int other = 0; other < last; ++other) send(other);
  }
  return own;
}

StepNumbers NumberChain::whole() {
  told_.wait();
  for (auto& [work, numbers] : sent_) work.wait();
  sent_.clear();
  return whole_;
}

}  // namespace quatrain
