// SPDX-License-Identifier: Apache-2.0
// Messages of a group through memory that its ranks share.
#include "heed/shared_memory.hpp"
#include "ranks/exchange.hpp"
#include "refusal/refusal.hpp"

namespace heed::ranks::shared {
namespace {

class SentThere final : public Messages::Message {
 public:
  SentThere(std::shared_ptr<Exchange> exchange, std::shared_ptr<Outgoing> message, int to)
      : exchange_(std::move(exchange)), message_(std::move(message)), to_(to) {}
  ~SentThere() override {
    if (!is_done_) exchange_->call_back(message_);
  }
  bool is_done() override { return is_done_ = exchange_->is_done(*message_); }
  std::uint64_t moved() const override { return exchange_->read(message_->written); }
  bool waits_for_peer() const override { return exchange_->is_behind(to_); }

 private:
  std::shared_ptr<Exchange> exchange_;
  std::shared_ptr<Outgoing> message_;
  int to_;
  bool is_done_ = false;
};

class ReceivedHere final : public Messages::Message {
 public:
  ReceivedHere(std::shared_ptr<Exchange> exchange, std::shared_ptr<Incoming> message, int from)
      : exchange_(std::move(exchange)), message_(std::move(message)), from_(from) {}
  ~ReceivedHere() override {
    if (!is_done_) exchange_->call_back(from_, message_);
  }
  bool is_done() override {
    is_done_ = exchange_->is_done(*message_);
    if (is_done_ && !message_->fault.empty()) throw Error(Error::rank, message_->fault);
    return is_done_;
  }
  std::uint64_t moved() const override { return exchange_->read(message_->copied); }

 private:
  std::shared_ptr<Exchange> exchange_;
  std::shared_ptr<Incoming> message_;
  int from_;
  bool is_done_ = false;
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

namespace HEED_NAMESPACE {

std::size_t bytes_of_shared_messages(int ranks) {
  const auto count = static_cast<std::size_t>(ranks);
  return count * count * sizeof(ranks::shared::Lane) + count * sizeof(ranks::shared::Outbox);
}

int layout_of_shared_messages() { return 2; }

std::unique_ptr<Messages> messages_in(SharedMemory memory, int rank, int ranks) {
  if (memory.bytes().size() != bytes_of_shared_messages(ranks))
    throw refusal(Error::value, "memory: ", static_cast<std::int64_t>(memory.bytes().size()),
                  " bytes are not those of ", std::int64_t{ranks}, " ranks");
  return std::make_unique<heed::ranks::shared::SharedMessages>(std::move(memory), rank, ranks);
}

}  // namespace HEED_NAMESPACE
