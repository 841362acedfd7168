// SPDX-License-Identifier: Apache-2.0
// Every rank has blocks that it alone writes, and a lane to every other, which tells that rank of pieces in
// them, in order. A block is free again when all whom it was for have copied it. Nobody believes what another
// process writes: a number that leads beyond a block, or a message, is a fault of who wrote it.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <list>
#include <mutex>
#include <thread>

#include "heed/shared_memory.hpp"
#include "refusal/refusal.hpp"

namespace heed::ranks::shared {
namespace {

constexpr std::size_t line_bytes = 64, block_bytes = std::size_t{64} << 10, blocks = 32;

// What a lane tells of: a part of a message, in a block of who sends it.
struct Piece {
  std::uint64_t of_bytes;  // that the whole message has
  std::uint32_t step, block, bytes;
};

// From one rank to another. A piece that is not taken holds a block, so there is always room for the next.
struct Lane {
  alignas(line_bytes) std::atomic<std::uint64_t> told;   // pieces, by who sends
  alignas(line_bytes) std::atomic<std::uint64_t> taken;  // by who receives
  alignas(line_bytes) Piece pieces[blocks];
};

struct alignas(line_bytes) Readers {
  std::atomic<std::uint32_t> left;  // who have not copied the block yet
};

// One rank's own.
struct Outbox {
  Readers readers[blocks];
  std::byte block[blocks][block_bytes];
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free &&
              std::atomic<std::uint32_t>::is_always_lock_free);

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
    std::list<std::shared_ptr<Incoming>> incoming{};
  };

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
    Outbox& own = outbox(rank_);
    const auto free = std::ranges::find_if(own.readers, [](const Readers& readers) {
      return readers.left.load(std::memory_order_acquire) == 0;
    });
    if (free == std::end(own.readers)) return false;
    const auto block = static_cast<std::size_t>(free - own.readers);
    const std::size_t bytes = std::min(block_bytes, message.bytes.size() - message.written);
    if (bytes > 0) std::memcpy(own.block[block], message.bytes.data() + message.written, bytes);
    free->left.store(static_cast<std::uint32_t>(message.to.size()), std::memory_order_relaxed);
    const Piece piece{message.bytes.size(), message.step, static_cast<std::uint32_t>(block),
                      static_cast<std::uint32_t>(bytes)};
    for (const int to : message.to) {
      Lane& way = lane(rank_, to);
      way.pieces[peer(to).told % blocks] = piece;
      way.told.store(++peer(to).told, std::memory_order_release);
    }
    message.written += bytes;
    message.is_done = message.written == message.bytes.size();
    return true;
  }

  // No more than were told of when this began: whoever tells without end does not keep this rank here. Also
  // of a rank from which nothing is awaited: what was dropped holds its blocks.
  void take_from(int from) {
    Peer& sender = peer(from);
    const std::uint64_t told = lane(from, rank_).told.load(std::memory_order_acquire) - sender.taken;
    if (told > blocks) return fail(sender, "more pieces are there than blocks");
    for (std::uint64_t n = 0; n < told; ++n)
      if (!take_piece(from, sender)) return;
  }

  // Whether the next one may be looked at.
  bool take_piece(int from, Peer& sender) {
    Lane& way = lane(from, rank_);
    const Piece piece = way.pieces[sender.taken % blocks];
    const auto wanted =
        std::ranges::find(sender.incoming, piece.step, [](const auto& one) { return one->step; });
    if (wanted != sender.incoming.end()) {
      copy(piece, outbox(from), **wanted);
      if ((*wanted)->is_done) sender.incoming.erase(wanted);
    } else if (!is_past(piece.step)) {
      return false;  // of an operation that this rank has not begun
    }
    way.taken.store(++sender.taken, std::memory_order_relaxed);
    if (piece.block < blocks) outbox(from).readers[piece.block].left.fetch_sub(1, std::memory_order_release);
    return true;
  }

  static void fail(Peer& sender, const char* why) {
    for (const auto& message : sender.incoming) message->fault = why, message->is_done = true;
    sender.incoming.clear();
  }

  // Operations are begun in order: nobody will ask for what an earlier one left.
  bool is_past(std::uint32_t step) const { return static_cast<std::int32_t>(latest_step_ - step) > 0; }

  static void copy(const Piece& piece, const Outbox& from, Incoming& to) {
    const std::size_t agreed = to.bytes.size(), lacking = agreed - to.copied;
    if (piece.of_bytes != agreed)
      to.fault = std::string("it is ") + (piece.of_bytes < agreed ? "shorter" : "longer") + " than the " +
                 std::to_string(agreed) + " bytes that were agreed on";
    else if (piece.block >= blocks || piece.bytes != std::min(lacking, block_bytes))
      to.fault = "a piece of it is nowhere that a piece can be";
    else if (piece.bytes > 0)
      std::memcpy(to.bytes.data() + to.copied, from.block[piece.block], piece.bytes);
    to.copied += to.fault.empty() ? piece.bytes : 0;
    to.is_done = !to.fault.empty() || to.copied == agreed;
  }

  const SharedMemory memory_;
  const int rank_;
  std::vector<Peer> peers_;
  std::list<std::shared_ptr<Outgoing>> outgoing_{};
  std::uint32_t latest_step_ = 0;
  std::thread::id user_{};  // the thread that began something or waited here last
  std::mutex mutex_{};
};

class SentThere final : public Messages::Message {
 public:
  SentThere(std::shared_ptr<Exchange> exchange, std::shared_ptr<Outgoing> message, int to)
      : exchange_(std::move(exchange)), message_(std::move(message)), to_(to) {}
  ~SentThere() override { exchange_->call_back(message_); }
  bool is_done() override { return exchange_->is_done(*message_); }
  std::uint64_t moved() const override { return exchange_->read(message_->written); }
  bool waits_for_peer() const override { return exchange_->is_behind(to_); }

 private:
  std::shared_ptr<Exchange> exchange_;
  std::shared_ptr<Outgoing> message_;
  int to_;
};

class ReceivedHere final : public Messages::Message {
 public:
  ReceivedHere(std::shared_ptr<Exchange> exchange, std::shared_ptr<Incoming> message, int from)
      : exchange_(std::move(exchange)), message_(std::move(message)), from_(from) {}
  ~ReceivedHere() override { exchange_->call_back(from_, message_); }
  bool is_done() override {
    const bool is_done = exchange_->is_done(*message_);
    if (is_done && !message_->fault.empty()) throw Error(Error::rank, message_->fault);
    return is_done;
  }
  std::uint64_t moved() const override { return exchange_->read(message_->copied); }

 private:
  std::shared_ptr<Exchange> exchange_;
  std::shared_ptr<Incoming> message_;
  int from_;
};

class SharedMessages final : public Messages {
 public:
  SharedMessages(SharedMemory memory, int rank, int ranks)
      : exchange_(std::make_shared<Exchange>(std::move(memory), rank, ranks)), patience_(ranks) {}

  int rank() const override { return exchange_->rank(); }
  int size() const override { return exchange_->ranks(); }
  std::unique_ptr<Message> send(int to, std::span<const std::byte> bytes, std::uint32_t step) override {
    return std::move(send_to_all({&to, 1}, bytes, step)[0]);
  }
  std::vector<std::unique_ptr<Message>> send_to_all(std::span<const int> to, std::span<const std::byte> bytes,
                                                    std::uint32_t step) override {
    patience_.begin();
    const auto message = exchange_->send(to, bytes, step);
    std::vector<std::unique_ptr<Message>> sent;
    for (const int rank : to) sent.push_back(std::make_unique<SentThere>(exchange_, message, rank));
    return sent;
  }
  std::unique_ptr<Message> receive(int from, std::span<std::byte> bytes, std::uint32_t step) override {
    patience_.begin();
    return std::make_unique<ReceivedHere>(exchange_, exchange_->receive(from, bytes, step), from);
  }
  bool share_memory() const override { return true; }
  void pause() override {
    patience_.wait();
    exchange_->move_with_all_of_this_thread();
  }
  void abort(const std::string&) noexcept override {}  // the others wait for their deadline

 private:
  std::shared_ptr<Exchange> exchange_;
  Patience patience_;
};

}  // namespace
}  // namespace heed::ranks::shared

namespace heed::inline v0_2 {

std::size_t bytes_of_shared_messages(int ranks) {
  const auto count = static_cast<std::size_t>(ranks);
  return count * count * sizeof(ranks::shared::Lane) + count * sizeof(ranks::shared::Outbox);
}

int layout_of_shared_messages() { return 1; }

std::unique_ptr<Messages> messages_in(SharedMemory memory, int rank, int ranks) {
  if (memory.bytes().size() != bytes_of_shared_messages(ranks))
    throw refusal(Error::value, "memory: ", static_cast<std::int64_t>(memory.bytes().size()),
                  " bytes are not those of ", std::int64_t{ranks}, " ranks");
  return std::make_unique<heed::ranks::shared::SharedMessages>(std::move(memory), rank, ranks);
}

}  // namespace heed::inline v0_2
