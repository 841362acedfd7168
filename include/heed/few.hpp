// SPDX-License-Identifier: Apache-2.0
// A vector of plain data that asks for no memory while it is short.
#pragma once
#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "heed/version.hpp"

namespace HEED_NAMESPACE {

// As much of std::vector as a list of masks needs; up to `enough` elements lie in the object itself.
template <class T, std::size_t enough>
class Few {
 public:
  Few() {}  // nearby_ is left unwritten
  Few(std::initializer_list<T> items) { append(items); }
  template <class Items>
    requires(std::is_convertible_v<const Items&, std::span<const T>> && !std::is_same_v<Items, Few>)
  Few(const Items& items) {
    append(items);
  }
  // Anything else ends here, and compilers print the line.
  template <class Item>
    requires(std::is_convertible_v<const Item&, T>)
  Few(const Item&) = delete;  // one of them: a list has braces, .masks = {Causal{}}
  template <class Items>
  Few(const Items&) = delete;  // no masks: booleans are Keep{{data, shape}} or Hide{...}, numbers a bias
  Few(const Few& other) { append(other); }
  Few(Few&& other) noexcept { take(other); }
  Few& operator=(const Few& other) { return *this = Few(other); }  // all or nothing
  Few& operator=(Few&& other) noexcept {
    if (this == &other) return *this;
    give_back();
    take(other);
    return *this;
  }
  ~Few() { give_back(); }

  template <class... Arguments>
  T& emplace_back(Arguments&&... arguments) {
    T made(std::forward<Arguments>(arguments)...);  // before what it may refer to moves
    if (size_ == room_) grow_to(2 * size_);
    return *std::construct_at(items_ + size_++, made);
  }
  void push_back(const T& item) { emplace_back(item); }
  void resize(std::size_t count) {
    if (count > room_) grow_to(count);
    for (; size_ < count; ++size_) std::construct_at(items_ + size_);
    size_ = count;
  }
  void clear() { size_ = 0; }

  T* data() { return items_; }
  const T* data() const { return items_; }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* begin() { return items_; }
  T* end() { return items_ + size_; }
  const T* begin() const { return items_; }
  const T* end() const { return items_ + size_; }
  T& operator[](std::size_t n) { return items_[n]; }
  const T& operator[](std::size_t n) const { return items_[n]; }

 private:
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

  bool is_nearby() const { return room_ == enough; }

  void append(std::span<const T> items) {
    if (size_ + items.size() > room_) grow_to(size_ + items.size());
    std::uninitialized_copy(items.begin(), items.end(), items_ + size_);
    size_ += items.size();
  }
  void grow_to(std::size_t count) {
    const std::size_t room = std::max(count, 2 * enough);
    T* const items = std::allocator<T>().allocate(room);
    std::uninitialized_copy_n(items_, size_, items);
    give_back();
    items_ = items;
    room_ = room;
  }
  void give_back() noexcept {
    if (!is_nearby()) std::allocator<T>().deallocate(items_, room_);
    items_ = nearby_;
    room_ = enough;
  }
  // From a state without memory of its own.
  void take(Few& other) noexcept {
    size_ = std::exchange(other.size_, 0);
    if (other.is_nearby()) {
      std::uninitialized_copy_n(other.items_, size_, items_);
      return;
    }
    items_ = std::exchange(other.items_, other.nearby_);
    room_ = std::exchange(other.room_, enough);
  }

  union {
    T nearby_[enough];
  };
  T* items_ = nearby_;
  std::size_t size_ = 0, room_ = enough;
};

}  // namespace HEED_NAMESPACE
