// SPDX-License-Identifier: Apache-2.0
// Ranks that compute together: processes, or threads of one. Four operations, each begun by all ranks in the
// same order, each with a deadline: what does not move is reported with the rank, the step and the direction,
// and nothing waits for ever.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "heed/error.hpp"
#include "heed/export.hpp"
#include "heed/version.hpp"

// The library's own.
namespace heed::ranks {
class GroupCall;
}  // namespace heed::ranks

namespace HEED_NAMESPACE {

// What a network does for a group: bytes from one rank to another. heed has it for threads of one process,
// below, and for MPI in heed/mpi.hpp.
struct HEED_API Messages {
  // One that is under way. Its bytes must stay where they are until it is done or destroyed, which calls it
  // back.
  struct HEED_API Message {
    virtual ~Message() = default;
    // Moves it forward and says whether it has arrived. Throws Error::rank where it never will: "it has 3
    // bytes, not 8".
    virtual bool is_done() = 0;
    // Grows as it moves, where the network can tell: a long message that moves is not late.
    virtual std::uint64_t moved() const { return 0; }
    // Whether it is the peer who keeps it from moving, where the network can tell, and not another message.
    virtual bool waits_for_peer() const { return true; }
  };

  virtual ~Messages() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // To or from another rank. Those of one step and pair of ranks arrive in the order they were sent in.
  virtual std::unique_ptr<Message> send(int to, std::span<const std::byte>, std::uint32_t step) = 0;
  virtual std::unique_ptr<Message> receive(int from, std::span<std::byte>, std::uint32_t step) = 0;
  // The same bytes to several ranks, a message to each, in their order. By send() for each of them, where a
  // network has nothing better.
  virtual std::vector<std::unique_ptr<Message>> send_to_all(std::span<const int> to,
                                                            std::span<const std::byte>, std::uint32_t step);
  // Whether all ranks can map the same SharedMemory (heed/shared_memory.hpp): what all of them read is then
  // left there instead of sent. All ranks say the same.
  virtual bool share_memory() const { return false; }
  // Returns when something may have changed, and soon in any case.
  virtual void pause() = 0;
  // Tells the others, as far as it can, that this rank gives up, and why.
  virtual void abort(const std::string& why) noexcept = 0;
};

// How a network's pause() may wait: what comes within a message's time is looked for without a break. What is
// late by more is left to others on the same core, and then to sleep.
class HEED_API Patience {
 public:
  // So many ranks share this machine: where it has fewer processors nobody looks without a break.
  explicit Patience(int ranks_here);
  // Something else is waited for from now on: a decode step waits twice.
  void begin() { begins_ = true; }
  void wait();

 private:
  std::chrono::microseconds looking_;
  bool begins_ = false;
  std::chrono::steady_clock::time_point waited_{}, waiting_since_{};
};

struct GroupOptions {
  // For one message to move while a rank waits for it, counted anew whenever one of the operation has.
  std::chrono::milliseconds deadline{60000};
};

// One rank's end. Not for several threads at once: a call over ranks that finds another thread in one is
// refused by Error::busy.
class HEED_API Group {
 public:
  explicit Group(std::unique_ptr<Messages>, const GroupOptions& = {});
  ~Group();
  Group(Group&&) noexcept;
  Group& operator=(Group&&) noexcept;

  int rank() const;
  int size() const;

  // An operation that was begun. Its memory is in use until wait() has returned, or this is destroyed.
  class HEED_API Pending {
   public:
    Pending();
    ~Pending();
    Pending(Pending&&) noexcept;
    Pending& operator=(Pending&&) noexcept;
    bool is_done();  // moves it forward; throws as wait() does
    // Throws Error::rank, "rank 2, step 5 (keys): nothing received from rank 1 for 3.0 s", and the group is
    // broken: this rank has told the others, and all that follows is refused with the same sentence.
    void wait();

   private:
    friend class Group;
    struct Operation;
    explicit Pending(std::unique_ptr<Operation>);
    std::unique_ptr<Operation> operation_;
  };

  // `what` names the step in sentences, and must outlive the operation. Lengths are agreed on beforehand:
  // what arrives shorter or longer is a fault. Every rank begins every operation, also those it has no part
  // in.
  //
  // From `root` to all `members`, in any order, each once; empty: to all ranks.
  [[nodiscard]] Pending broadcast(const char* what, int root, std::span<std::byte> data,
                                  std::span<const int> members = {});
  // Every rank has the bytes of all, in the order of ranks.
  [[nodiscard]] Pending gather(const char* what, std::span<const std::byte> own,
                               std::span<const std::span<std::byte>> all);
  // to[r] goes to rank r, from[r] comes from it.
  [[nodiscard]] Pending all_to_all(const char* what, std::span<const std::span<const std::byte>> to,
                                   std::span<const std::span<std::byte>> from);

  // Gives up: the others are told, and every operation from now on is refused.
  void abort(const std::string& why);

 private:
  friend ranks::GroupCall;
  std::unique_ptr<Pending::Operation> begin_exchange(const char* what, std::span<const std::byte> from_own,
                                                     std::span<std::byte> to_own);
  struct State;
  std::unique_ptr<State> state_;
};

// The ends of a group whose ranks are threads of this process, in the order of ranks. A rank whose end is
// destroyed is gone.
HEED_API std::vector<Group> group_of_threads(int ranks, const GroupOptions& = {});
// The network under it.
HEED_API std::vector<std::unique_ptr<Messages>> messages_of_threads(int ranks);

}  // namespace HEED_NAMESPACE
