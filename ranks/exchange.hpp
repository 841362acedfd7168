// SPDX-License-Identifier: Apache-2.0
// One rank's end of the messages through shared memory. Every rank has blocks that it alone writes, and a
// lane to every other, which tells that rank of pieces in them, in order. A block is free again when all whom
// it was for have copied it. What two processes both write travels between their cores, and whoever looks at
// it waits: so each line has one writer, and a short message lies in the line that tells of it. Nobody
// believes what another process writes: a number that leads beyond a block, or a message, is a fault of who
// wrote it.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "heed/shared_memory.hpp"

namespace heed::ranks::shared {

constexpr std::size_t line_bytes = 64, block_bytes = std::size_t{64} << 10, blocks = 32, slots = 32,
                      short_bytes = 32;
constexpr std::uint32_t in_its_slot = ~std::uint32_t{0};  // in place of a block

// What a lane tells of: a part of a message, in a block of who sends it.
struct Piece {
  std::uint64_t of_bytes;  // that the whole message has
  std::uint32_t step, block, bytes;
};

struct alignas(line_bytes) Slot {
  std::atomic<std::uint64_t>
      number;  // of the piece that lies here, from 1; the one before it by `slots` was taken
  Piece piece;
  std::byte bytes[short_bytes];  // of a message that needs no more
};
static_assert(sizeof(Slot) == line_bytes);

// From one rank to another.
struct Lane {
  Slot slot[slots];                                      // who sends writes
  alignas(line_bytes) std::atomic<std::uint64_t> taken;  // pieces, by who receives
};

// One rank's own.
struct Outbox {
  std::byte block[blocks][block_bytes];
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// One message to some ranks, on its way into blocks.
struct Outgoing {
  std::vector<int> to;
  std::span<const std::byte> bytes;
  std::uint32_t step;
  std::size_t written = 0;
  bool is_done = false;
};

struct Incoming {
  std::span<std::byte> bytes;
  std::uint32_t step;
  std::size_t copied = 0;
  bool is_done = false;
  std::string fault{};
};

// Its public functions may be called by several threads: one that waits moves what it left in other groups,
// and those may be another's by then.
class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(SharedMemory memory, int rank, int ranks)
      : memory_(std::move(memory)), rank_(rank), peers_(static_cast<std::size_t>(ranks)) {}

  int rank() const { return rank_; }
  int ranks() const { return static_cast<int>(peers_.size()); }

  std::shared_ptr<Outgoing> send(std::span<const int> to, std::span<const std::byte> bytes,
                                 std::uint32_t step) {
    const std::lock_guard lock(mutex_);
    latest_step_ = step;
    use();
    auto made = std::make_shared<Outgoing>(Outgoing{{to.begin(), to.end()}, bytes, step});
    outgoing_.push_back(made);
    write_what_fits();
    return made;
  }
  std::shared_ptr<Incoming> receive(int from, std::span<std::byte> bytes, std::uint32_t step) {
    const std::lock_guard lock(mutex_);
    latest_step_ = step;
    use();
    auto made = std::make_shared<Incoming>(Incoming{bytes, step});
    peer(from).incoming.push_back(made);
    return made;
  }
  void call_back(const std::shared_ptr<Outgoing>& one) {
    const std::lock_guard lock(mutex_);
    outgoing_.remove(one);
  }
  void call_back(int from, const std::shared_ptr<Incoming>& one) {
    const std::lock_guard lock(mutex_);
    peer(from).incoming.remove(one);
  }

  // Moves all that can move unless this message is done, and says whether it is.
  bool is_done(const auto& message) {
    const std::lock_guard lock(mutex_);
    if (!message.is_done) move();
    return message.is_done;
  }
  std::size_t read(const std::size_t& moved) {
    const std::lock_guard lock(mutex_);
    return moved;
  }
  // Whether a rank has not taken all that it was told of.
  bool is_behind(int to) {
    const std::lock_guard lock(mutex_);
    return lane(rank_, to).taken != peer(to).told;
  }

  // And all other groups that this thread was the last to use: who waits in one may keep others waiting in
  // another.
  void move_with_all_of_this_thread() {
    {
      const std::lock_guard lock(mutex_);
      use();
    }
    std::erase_if(of_this_thread, [](const std::weak_ptr<Exchange>& one) {
      const std::shared_ptr<Exchange> exchange = one.lock();
      return !exchange || !exchange->move_for_this_thread();
    });
  }

 private:
  struct Peer {
    std::uint64_t told = 0, taken = 0;  // this process's own count: what lies in the lane may be anything
    std::uint64_t known_taken = 0;      // by the peer, when this rank last looked
    std::list<std::shared_ptr<Incoming>> incoming{};
  };
  // Of a block: to whom, and the number of the piece there.
  using Readers = std::vector<std::pair<int, std::uint64_t>>;

  inline static thread_local std::vector<std::weak_ptr<Exchange>> of_this_thread{};

  void use() {
    const std::thread::id here = std::this_thread::get_id();
    if (std::exchange(user_, here) == here) return;
    std::erase_if(of_this_thread, [this](const std::weak_ptr<Exchange>& one) {
      const std::shared_ptr<Exchange> exchange = one.lock();
      return !exchange || exchange.get() == this;  // it was this thread's before
    });
    of_this_thread.push_back(weak_from_this());
  }
  bool move_for_this_thread() {
    const std::lock_guard lock(mutex_);
    if (user_ != std::this_thread::get_id()) return false;
    move();
    return true;
  }

  // All that can move, whoever asks: who waits for one message may keep others waiting for another.
  void move() {
    for (int from = 0; from < ranks(); ++from) take_from(from);
    write_what_fits();
  }

  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  Lane& lane(int from, int to) const {
    return reinterpret_cast<Lane*>(memory_.bytes().data())[from * ranks() + to];
  }
  Outbox& outbox(int of) const {
    const auto lanes = static_cast<std::size_t>(ranks()) * static_cast<std::size_t>(ranks());
    return reinterpret_cast<Outbox*>(memory_.bytes().data() + lanes * sizeof(Lane))[of];
  }

  // In the order in which messages were sent, so that the pieces of one follow each other in every lane.
  void write_what_fits() {
    while (!outgoing_.empty()) {
      Outgoing& first = *outgoing_.front();
      while (!first.is_done)
        if (!write_piece(first)) return;
      outgoing_.pop_front();
    }
  }

  bool write_piece(Outgoing& message) {
    const auto has_a_slot = [this](int to) { return has_taken(to, peer(to).told + 1 - slots); };
    if (!std::all_of(message.to.begin(), message.to.end(), has_a_slot)) return false;
    const bool is_short = message.bytes.size() <= short_bytes;
    const std::size_t block = is_short ? blocks : free_block();
    if (!is_short && block == blocks) return false;
    const auto part = message.bytes.subspan(message.written)
                          .first(std::min(block_bytes, message.bytes.size() - message.written));
    if (!is_short) {
      readers_[block].reserve(
          message.to.size());  // nothing is allocated between one who is told and the next
      std::ranges::copy(part, outbox(rank_).block[block]);
    }
    const Piece piece{message.bytes.size(), message.step,
                      is_short ? in_its_slot : static_cast<std::uint32_t>(block),
                      static_cast<std::uint32_t>(part.size())};
    for (const int to : message.to) {
      const std::uint64_t number = ++peer(to).told;
      Slot& slot = lane(rank_, to).slot[number % slots];
      slot.piece = piece;
      if (is_short) std::ranges::copy(part, slot.bytes);
      slot.number.store(number, std::memory_order_release);
      if (!is_short) readers_[block].emplace_back(to, number);
    }
    message.written += part.size();
    message.is_done = message.written == message.bytes.size();
    return true;
  }

  // Looks at what the peer writes only where what was last seen there does not do, and believes no number of
  // pieces that are not under way.
  bool has_taken(int to, std::uint64_t number) {
    Peer& reader = peer(to);
    const auto is_enough = [&] { return static_cast<std::int64_t>(reader.known_taken - number) >= 0; };
    if (is_enough()) return true;
    const std::uint64_t said = lane(rank_, to).taken.load(std::memory_order_acquire);
    if (reader.told - said <= slots) reader.known_taken = said;
    return is_enough();
  }

  // `blocks` where there is none. The one that was used longest ago is tried first.
  std::size_t free_block() {
    for (std::size_t n = 1; n <= blocks; ++n) {
      const std::size_t block = (last_block_ + n) % blocks;
      const auto is_done = [this](const auto& one) { return has_taken(one.first, one.second); };
      if (!std::all_of(readers_[block].begin(), readers_[block].end(), is_done)) continue;
      readers_[block].clear();
      return last_block_ = block;
    }
    return blocks;
  }

  // No more than a lane has at once: whoever tells without end does not keep this rank here. Also of a rank
  // from which nothing is awaited: what was dropped holds its blocks.
  void take_from(int from) {
    for (std::size_t n = 0; n < slots; ++n)
      if (!take_piece(from, peer(from))) return;
  }

  // Whether the next one may be looked at.
  bool take_piece(int from, Peer& sender) {
    Lane& way = lane(from, rank_);
    const std::uint64_t number = sender.taken + 1;
    const Slot& slot = way.slot[number % slots];
    if (const std::uint64_t found = slot.number.load(std::memory_order_acquire); found != number) {
      if (found != (number > slots ? number - slots : 0))
        fail(sender, "a piece is there that nobody told of");
      return false;
    }
    const Piece piece = slot.piece;
    const auto wanted =
        std::ranges::find(sender.incoming, piece.step, [](const auto& one) { return one->step; });
    if (wanted != sender.incoming.end()) {
      copy(piece, piece.block < blocks ? outbox(from).block[piece.block] : slot.bytes, **wanted);
      if ((*wanted)->is_done) sender.incoming.erase(wanted);
    } else if (!is_past(piece.step)) {
      return false;  // of an operation that this rank has not begun
    }
    way.taken.store(++sender.taken, std::memory_order_release);
    return true;
  }

  static void fail(Peer& sender, const char* why) {
    for (const auto& message : sender.incoming) message->fault = why, message->is_done = true;
    sender.incoming.clear();
  }

  // Operations are begun in order: nobody will ask for what an earlier one left.
  bool is_past(std::uint32_t step) const { return static_cast<std::int32_t>(latest_step_ - step) > 0; }

  static void copy(const Piece& piece, const std::byte* from, Incoming& to) {
    const std::size_t agreed = to.bytes.size(), lacking = agreed - to.copied;
    const bool is_there = agreed <= short_bytes ? piece.block == in_its_slot : piece.block < blocks;
    if (piece.of_bytes != agreed)
      to.fault = std::string("it is ") + (piece.of_bytes < agreed ? "shorter" : "longer") + " than the " +
                 std::to_string(agreed) + " bytes that were agreed on";
    else if (!is_there || piece.bytes != std::min(lacking, block_bytes))
      to.fault = "a piece of it is nowhere that a piece can be";
    else if (piece.bytes > 0)
      std::memcpy(to.bytes.data() + to.copied, from, piece.bytes);
    to.copied += to.fault.empty() ? piece.bytes : 0;
    to.is_done = !to.fault.empty() || to.copied == agreed;
  }

  const SharedMemory memory_;
  const int rank_;
  std::vector<Peer> peers_;
  std::array<Readers, blocks> readers_{};  // who may still copy this rank's blocks
  std::size_t last_block_ = 0;
  std::list<std::shared_ptr<Outgoing>> outgoing_{};
  std::uint32_t latest_step_ = 0;
  std::thread::id user_{};  // the thread that began something or waited here last
  std::mutex mutex_{};
};

}  // namespace heed::ranks::shared
