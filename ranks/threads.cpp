// SPDX-License-Identifier: Apache-2.0
// Messages between threads of one process. A message that is sent waits where it lies, and whoever receives
// it copies it: once, and outside the lock.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <list>
#include <mutex>
#include <thread>

#include "heed/group.hpp"
#include "refusal/refusal.hpp"
#include "threads/pool.hpp"

namespace heed::ranks {
namespace {

struct Sent {
  int from, to;
  std::uint32_t step;
  std::span<const std::byte> bytes;
  enum State : std::uint8_t { waits, is_copied, is_there } state = waits;
};

// What one rank waits for. Eight ranks that woke each other for every message of any two of them waited 3 ms
// for a decode step's 112 (16 logical CPUs of a Xeon, November 2026).
struct Bell {
  std::condition_variable rung;
  std::atomic<std::uint64_t> times = 0;  // under the mutex
  bool sleeps = false;                   // its rank, likewise

  void ring() {
    ++times;
    if (sleeps) rung.notify_all();
  }
};

// All ranks' own.
struct Network {
  explicit Network(int ranks) : bells(static_cast<std::size_t>(ranks)), has_left(bells.size()) {}

  std::mutex mutex;
  std::vector<Bell> bells;  // of every rank
  std::list<Sent> sent;     // and not yet forgotten by who sent it, in order
  std::vector<bool> has_left;
  std::string given_up;  // why, in the words of the first that did

  Bell& bell(int rank) { return bells[static_cast<std::size_t>(rank)]; }
  void ring_all() {
    for (Bell& bell : bells) bell.ring();
  }
  void check_alive(int peer) const {
    if (!given_up.empty()) throw Error(Error::rank, "the group has given up, as " + given_up);
    if (has_left[static_cast<std::size_t>(peer)]) throw Error(Error::rank, "that rank is gone");
  }
};

class Sending final : public Messages::Message {
 public:
  Sending(std::shared_ptr<Network> network, const Sent& sent) : network_(std::move(network)) {
    const std::lock_guard lock(network_->mutex);
    at_ = network_->sent.insert(network_->sent.end(), sent);
    network_->bell(sent.to).ring();
  }
  ~Sending() override {
    std::unique_lock lock(network_->mutex);
    Bell& own = network_->bell(at_->from);
    own.sleeps = true;
    own.rung.wait(lock, [this] { return at_->state != Sent::is_copied; });
    own.sleeps = false;
    network_->sent.erase(at_);
  }
  bool is_done() override {
    const std::lock_guard lock(network_->mutex);
    if (at_->state != Sent::is_there) network_->check_alive(at_->to);
    return at_->state == Sent::is_there;
  }

 private:
  std::shared_ptr<Network> network_;
  std::list<Sent>::iterator at_;
};

class Receiving final : public Messages::Message {
 public:
  Receiving(std::shared_ptr<Network> network, int from, int to, std::uint32_t step,
            std::span<std::byte> bytes)
      : network_(std::move(network)), from_(from), to_(to), step_(step), bytes_(bytes) {}

  bool is_done() override {
    std::unique_lock lock(network_->mutex);
    const auto found = std::find_if(network_->sent.begin(), network_->sent.end(), [this](const Sent& s) {
      return s.from == from_ && s.to == to_ && s.step == step_ && s.state == Sent::waits;
    });
    if (found == network_->sent.end()) {
      network_->check_alive(from_);
      return false;
    }
    if (found->bytes.size() != bytes_.size())
      throw refusal(Error::rank, "it has ", static_cast<std::int64_t>(found->bytes.size()), " bytes, not ",
                    static_cast<std::int64_t>(bytes_.size()));
    found->state = Sent::is_copied;
    lock.unlock();
    std::memcpy(bytes_.data(), found->bytes.data(), bytes_.size());
    lock.lock();
    found->state = Sent::is_there;
    network_->bell(from_).ring();
    return true;
  }

 private:
  std::shared_ptr<Network> network_;
  int from_, to_;
  std::uint32_t step_;
  std::span<std::byte> bytes_;
};

class ThreadMessages final : public Messages {
 public:
  ThreadMessages(std::shared_ptr<Network> network, int rank) : network_(std::move(network)), rank_(rank) {}
  ~ThreadMessages() override {
    const std::lock_guard lock(network_->mutex);
    network_->has_left[static_cast<std::size_t>(rank_)] = true;
    network_->ring_all();
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(network_->has_left.size()); }
  std::unique_ptr<Message> send(int to, std::span<const std::byte> bytes, std::uint32_t step) override {
    return std::make_unique<Sending>(network_, Sent{rank_, to, step, bytes});
  }
  std::unique_ptr<Message> receive(int from, std::span<std::byte> bytes, std::uint32_t step) override {
    return std::make_unique<Receiving>(network_, from, rank_, step, bytes);
  }
  // To sleep and be woken takes longer than most messages, unless another rank needs this core.
  void pause() override {
    Bell& own = network_->bell(rank_);
    const auto has_rung = [&] { return own.times != heard_; };
    for (int n = 0; n < looks_ && !has_rung(); ++n) threads::relax();
    if (!has_rung()) {
      std::unique_lock lock(network_->mutex);
      own.sleeps = true;
      own.rung.wait_for(lock, std::chrono::milliseconds(1), has_rung);
      own.sleeps = false;
    }
    heard_ = own.times;
  }
  void abort(const std::string& why) noexcept override {
    try {
      const std::lock_guard lock(network_->mutex);
      if (network_->given_up.empty()) network_->given_up = why;
      network_->ring_all();
    } catch (...) {  // without memory for the sentence the others wait for their deadline
    }
  }

 private:
  std::shared_ptr<Network> network_;
  int rank_;
  std::uint64_t heard_ = 0;  // of the bell's times
  const int looks_ = static_cast<unsigned>(size()) <= std::thread::hardware_concurrency() ? 2000 : 0;
};

}  // namespace
}  // namespace heed::ranks

namespace HEED_NAMESPACE {

std::vector<std::unique_ptr<Messages>> messages_of_threads(int ranks) {
  if (ranks < 1) throw refusal(Error::value, "ranks: ", std::int64_t{ranks}, " is less than 1");
  const auto network = std::make_shared<heed::ranks::Network>(ranks);
  std::vector<std::unique_ptr<Messages>> ends;
  for (int rank = 0; rank < ranks; ++rank)
    ends.push_back(std::make_unique<heed::ranks::ThreadMessages>(network, rank));
  return ends;
}

}  // namespace HEED_NAMESPACE
