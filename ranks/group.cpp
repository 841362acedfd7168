// SPDX-License-Identifier: Apache-2.0
// A group's operations as messages between pairs of ranks, and what becomes of one that does not move.
#include "heed/group.hpp"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <optional>

#include "ranks/group_call.hpp"
#include "ranks/group_memory.hpp"
#include "refusal/refusal.hpp"
#include "threads/pool.hpp"

namespace HEED_NAMESPACE {
namespace {

using Clock = std::chrono::steady_clock;

std::string seconds(std::chrono::milliseconds time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", std::chrono::duration<double>(time).count());
  return text;
}

}  // namespace

struct Group::State {
  std::unique_ptr<Messages> messages;
  GroupOptions options;
  std::uint32_t step = 0;
  std::string fault{};                  // of a broken group
  std::atomic<bool> is_called = false;  // by a thread that is in a call over ranks
  ranks::GroupMemory memory{};
  ranks::Board board{};

  std::string place(std::uint32_t at, const char* what) const {
    return "rank " + std::to_string(messages->rank()) + ", step " + std::to_string(at) + " (" + what + "): ";
  }

  // Breaks the group.
  Error broken(const std::string& sentence) {
    if (fault.empty()) {
      fault = sentence;
      messages->abort(sentence);
    }
    return {Error::rank, fault};
  }
  Error nothing_from(int rank, std::uint32_t at, const char* what) {
    return broken(place(at, what) + "nothing received from rank " + std::to_string(rank) + " for " +
                  seconds(options.deadline));
  }
  // Whole milliseconds: a deadline of any length can be compared with, where nanoseconds would overflow.
  bool is_late(Clock::time_point moved) const {
    return std::chrono::floor<std::chrono::milliseconds>(Clock::now() - moved) >= options.deadline;
  }
};

struct Group::Pending::Operation {
  static constexpr const char *to_rank = "to rank ", *from_rank = "from rank ";
  struct Part {
    int peer;
    bool is_sent;
    std::unique_ptr<Messages::Message> message;
  };

  Operation(State& of, const char* name_of_step, std::uint32_t number)
      : group(of), what(name_of_step), step(number) {}

  State& group;
  const char* what;
  std::uint32_t step;
  std::vector<Part> parts{};  // that are under way
  Clock::time_point moved{};  // when something did, or the wait for it began
  std::uint64_t moved_so_far = 0;

  // Of a message "to rank 2", or to a rank that is not known (-1). A fault of its own breaks the group. What
  // else comes out of a network, such as what a program's handler of a signal raised meanwhile, goes on as it
  // is, and the others are told that this rank will not come.
  template <class Body>
  auto or_broken(const char* direction, int peer, const Body& body) {
    try {
      return body();
    } catch (const Error& e) {
      const std::string name = peer < 0 ? "to another rank" : direction + std::to_string(peer);
      throw group.broken(group.place(step, what) + "the message " + name + ": " + e.what());
    } catch (const std::exception& e) {
      group.broken(group.place(step, what) + "it gave up: " + e.what());
      throw;
    }
  }

  // What is empty needs no message.
  void send(std::span<const int> to, std::span<const std::byte> bytes) {
    if (to.empty() || bytes.empty()) return;
    const int peer = to.size() == 1 ? to[0] : -1;
    auto messages = or_broken(to_rank, peer, [&] { return group.messages->send_to_all(to, bytes, step); });
    for (std::size_t n = 0; n < to.size(); ++n) parts.push_back({to[n], true, std::move(messages[n])});
  }
  void receive(int from, std::span<std::byte> bytes) {
    if (bytes.empty()) return;
    auto message = or_broken(from_rank, from, [&] { return group.messages->receive(from, bytes, step); });
    parts.push_back({from, false, std::move(message)});
  }

  // A piece of each rank, in their order.
  void receive_from_others(std::span<const std::span<std::byte>> pieces) {
    for (std::size_t r = 0; r < pieces.size(); ++r)
      if (static_cast<int>(r) != group.messages->rank()) receive(static_cast<int>(r), pieces[r]);
  }

  // Whether all are done.
  bool advance() {
    if (!group.fault.empty()) throw Error(Error::rank, group.fault);
    const std::size_t before = parts.size();
    std::erase_if(parts, [&](Part& part) {
      return or_broken(part.is_sent ? to_rank : from_rank, part.peer,
                       [&] { return part.message->is_done(); });
    });
    std::uint64_t now = 0;
    for (const Part& part : parts) now += part.message->moved();
    if (parts.size() != before || now != moved_so_far) moved = Clock::now();
    moved_so_far = now;
    return parts.empty();
  }

  // The deadline begins here: whoever has begun this ahead of time may have computed since.
  void wait() {
    moved = Clock::now();
    while (!advance()) {
      if (group.is_late(moved)) throw late();
      group.messages->pause();
    }
  }

  // Who receives nothing knows more than who cannot send: the peer may only be waiting for a third.
  Error late() {
    auto first = std::ranges::find(parts, false, &Part::is_sent);
    if (first == parts.end())
      first = std::ranges::find_if(parts, [](const Part& part) { return part.message->waits_for_peer(); });
    if (first == parts.end()) first = parts.begin();
    if (!first->is_sent) return group.nothing_from(first->peer, step, what);
    return group.broken(group.place(step, what) + "nothing taken by rank " + std::to_string(first->peer) +
                        " for " + seconds(group.options.deadline));
  }
};

Group::Pending::Pending() = default;
Group::Pending::Pending(std::unique_ptr<Operation> operation) : operation_(std::move(operation)) {}
Group::Pending::~Pending() = default;
Group::Pending::Pending(Pending&&) noexcept = default;
Group::Pending& Group::Pending::operator=(Pending&&) noexcept = default;

bool Group::Pending::is_done() {
  if (operation_ && operation_->advance()) operation_.reset();
  return !operation_;
}

void Group::Pending::wait() {
  if (operation_) operation_->wait();
  operation_.reset();
}

Group::Group(std::unique_ptr<Messages> messages, const GroupOptions& options)
    : state_(new State{.messages = std::move(messages), .options = options}) {
  if (options.deadline.count() <= 0)
    throw refusal(Error::value, "options.deadline: ", std::int64_t{options.deadline.count()},
                  " ms is not above 0");
}
Group::~Group() = default;
Group::Group(Group&&) noexcept = default;
Group& Group::operator=(Group&&) noexcept = default;

int Group::rank() const { return state_->messages->rank(); }
int Group::size() const { return state_->messages->size(); }

namespace {

void check_rank(const char* name, int rank, int size) {
  if (rank < 0 || rank >= size)
    throw refusal(Error::value, name, ": ", std::int64_t{rank}, " is none of the ", std::int64_t{size},
                  " ranks");
}

void check_count(const char* name, std::size_t count, int size) {
  if (count != static_cast<std::size_t>(size))
    throw refusal(Error::shape, name, ": ", static_cast<std::int64_t>(count), " pieces for ",
                  std::int64_t{size}, " ranks");
}

void copy_own(const char* name, std::span<const std::byte> from, std::span<std::byte> to) {
  if (from.size() != to.size())
    throw refusal(Error::shape, name, ": ", static_cast<std::int64_t>(from.size()),
                  " bytes of this rank's own are not ", static_cast<std::int64_t>(to.size()));
  if (!from.empty() && from.data() != to.data()) std::memmove(to.data(), from.data(), from.size());
}

// All others, the next one first: so not all send to the same one at once.
std::vector<int> ranks_after(int rank, int size) {
  std::vector<int> others;
  for (int n = 1; n < size; ++n) others.push_back((rank + n) % size);
  return others;
}

}  // namespace

std::vector<std::unique_ptr<Messages::Message>> Messages::send_to_all(std::span<const int> to,
                                                                      std::span<const std::byte> bytes,
                                                                      std::uint32_t step) {
  std::vector<std::unique_ptr<Message>> sent;
  for (const int rank : to) sent.push_back(send(rank, bytes, step));
  return sent;
}

Group::Pending Group::broadcast(const char* what, int root, std::span<std::byte> data,
                                std::span<const int> members) {
  if (!state_->fault.empty()) throw Error(Error::rank, state_->fault);
  check_rank("root", root, size());
  std::vector<int> to(members.begin(), members.end());
  if (members.empty()) to.resize(static_cast<std::size_t>(size())), std::iota(to.begin(), to.end(), 0);
  for (const int member : to) check_rank("members", member, size());
  std::erase(to, root);
  std::sort(to.begin(), to.end());  // whoever is named twice has it once
  to.erase(std::unique(to.begin(), to.end()), to.end());
  auto made = std::make_unique<Pending::Operation>(*state_, what, state_->step++);
  if (rank() == root) made->send(to, data);
  for (const int member : to)
    if (rank() == member) made->receive(root, data);
  return Pending(std::move(made));
}

Group::Pending Group::gather(const char* what, std::span<const std::byte> own,
                             std::span<const std::span<std::byte>> all) {
  check_count("all", all.size(), size());
  auto made = begin_exchange(what, own, all[static_cast<std::size_t>(rank())]);
  made->send(ranks_after(rank(), size()), own);
  made->receive_from_others(all);
  return Pending(std::move(made));
}

Group::Pending Group::all_to_all(const char* what, std::span<const std::span<const std::byte>> to,
                                 std::span<const std::span<std::byte>> from) {
  if (!state_->fault.empty()) throw Error(Error::rank, state_->fault);
  check_count("to", to.size(), size());
  check_count("from", from.size(), size());
  auto made =
      begin_exchange(what, to[static_cast<std::size_t>(rank())], from[static_cast<std::size_t>(rank())]);
  for (const int r : ranks_after(rank(), size())) made->send({&r, 1}, to[static_cast<std::size_t>(r)]);
  made->receive_from_others(from);
  return Pending(std::move(made));
}

// What is this rank's own. The others' comes after what they wait for has been sent.
std::unique_ptr<Group::Pending::Operation> Group::begin_exchange(const char* what,
                                                                 std::span<const std::byte> from_own,
                                                                 std::span<std::byte> to_own) {
  if (!state_->fault.empty()) throw Error(Error::rank, state_->fault);
  copy_own("to", from_own, to_own);
  return std::make_unique<Pending::Operation>(*state_, what, state_->step++);
}

void Group::abort(const std::string& why) {
  state_->broken("rank " + std::to_string(rank()) + " gave up: " + why);
}

std::vector<Group> group_of_threads(int ranks, const GroupOptions& options) {
  std::vector<Group> ends;
  for (std::unique_ptr<Messages>& end : messages_of_threads(ranks))
    ends.emplace_back(std::move(end), options);
  return ends;
}

}  // namespace HEED_NAMESPACE

namespace heed::ranks {

// A broken group has no more calls: on the board, ranks that are late would take them for parts of theirs.
GroupCall::GroupCall(Group& group) : group_(group) {
  if (group.state_->is_called.exchange(true, std::memory_order_acquire))
    throw refusal(Error::busy, "group: another thread is in a call of it right now");
  if (group.state_->fault.empty()) return;
  group.state_->is_called.store(false, std::memory_order_release);
  throw Error(Error::rank, group.state_->fault);
}
GroupCall::~GroupCall() {
  group_.state_->memory.end_call();
  group_.state_->is_called.store(false, std::memory_order_release);
}
bool GroupCall::share_memory() const { return group_.state_->messages->share_memory(); }
std::span<std::byte> GroupCall::shared(std::size_t bytes) const {
  return share_memory() ? group_.state_->memory.of(group_, bytes) : std::span<std::byte>();
}
Board& GroupCall::board() const { return group_.state_->board; }

// The board is looked at many times for every look at the clock, and messages move only for who waits for
// longer than any step lasts: others may be waiting for what this rank has begun to send. It is no step:
// messages know an old one by its number, within 2^31 of their own, and a board may have more uses between
// two of them.
void GroupCall::wait_for_all(const char* what) const {
  constexpr int looks_together = 50;
  constexpr std::chrono::milliseconds long_wait{1};
  Group::State& group = *group_.state_;
  const Clock::time_point begun = Clock::now();
  Patience patience(group_.size());
  std::optional<int> missing;
  for (Clock::time_point moved = begun;; patience.wait()) {
    if (!group.fault.empty()) throw Error(Error::rank, group.fault);
    const std::optional<int> before = missing;
    for (int n = 0; n < looks_together; ++n) {
      missing = group.board.first_missing();
      if (!missing) return;
      threads::relax();
    }
    if (missing != before) moved = Clock::now();
    if (group.is_late(moved)) throw group.nothing_from(*missing, group.step, what);
    if (Clock::now() - begun > long_wait) group.messages->pause();
  }
}

}  // namespace heed::ranks
