// SPDX-License-Identifier: Apache-2.0
#include "python_messages.hpp"

#include <chrono>
#include <thread>

#include "refusal.hpp"

namespace heed::python {
namespace {

// An exception of Python's on its way through the group. Not nb::python_error itself: the words of that are a
// traceback, and those of this are told to other ranks.
class RaisedByHandler final : public std::exception {
 public:
  RaisedByHandler(nb::python_error error, std::string words)
      : error_(std::move(error)), words_(std::move(words)) {}
  const char* what() const noexcept override { return words_.c_str(); }
  void raise() { error_.restore(); }

 private:
  nb::python_error error_;
  std::string words_;
};

// Calls into Python let handlers of signals run, and what these raise is not the network's: it goes through
// the group to the caller as it is.
template <class Body>
auto with_python(Body body) {
  const nb::gil_scoped_acquire held;
  try {
    return body();
  } catch (nb::python_error& error) {
    const std::string words = in_words(error), said = text_of(error.value());
    const nb::module_ handlers = nb::module_::import_("heed._handlers");
    if (nb::cast<bool>(handlers.attr("was_raised_by_one")(error.value())))
      throw RaisedByHandler(std::move(error), words);
    throw Error(Error::rank, said.empty() ? words : said);
  }
}

class PythonMessage final : public Messages::Message {
 public:
  explicit PythonMessage(nb::object object) : object_(std::move(object)) {}
  ~PythonMessage() override {
    const nb::gil_scoped_acquire held;
    try {
      if (object_.is_valid()) object_.attr("drop")();
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("a message of heed.distributed");
    }
    object_.reset();
  }
  PythonMessage(const PythonMessage&) = delete;
  PythonMessage& operator=(const PythonMessage&) = delete;

  bool is_done() override {
    return with_python([this] { return nb::cast<bool>(object_.attr("is_done")()); });
  }

 private:
  nb::object object_;
};

class PythonMessages final : public Messages {
 public:
  explicit PythonMessages(nb::object object)
      : rank_(nb::cast<int>(object.attr("rank"))),
        size_(nb::cast<int>(object.attr("size"))),
        object_(std::move(object)) {}
  ~PythonMessages() override {
    const nb::gil_scoped_acquire held;
    object_.reset();
  }
  PythonMessages(const PythonMessages&) = delete;
  PythonMessages& operator=(const PythonMessages&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::unique_ptr<Message> send(int to, std::span<const std::byte> bytes, std::uint32_t step) override {
    auto* memory = reinterpret_cast<char*>(const_cast<std::byte*>(bytes.data()));
    return start("send", to, {memory, bytes.size()}, PyBUF_READ, step);
  }
  std::unique_ptr<Message> receive(int from, std::span<std::byte> bytes, std::uint32_t step) override {
    return start("receive", from, {reinterpret_cast<char*>(bytes.data()), bytes.size()}, PyBUF_WRITE, step);
  }
  void pause() override { std::this_thread::sleep_for(std::chrono::microseconds(50)); }
  void abort(const std::string& why) noexcept override {
    try {
      with_python([&] { object_.attr("abort")(why); });
    } catch (const std::exception&) {  // the others wait for their deadline
    }
  }

 private:
  std::unique_ptr<Message> start(const char* how, int peer, std::span<char> bytes, int access,
                                 std::uint32_t step) const {
    return with_python([&]() -> std::unique_ptr<Message> {
      const nb::object memory =
          nb::steal(PyMemoryView_FromMemory(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), access));
      return std::make_unique<PythonMessage>(object_.attr(how)(peer, memory, step));
    });
  }

  int rank_, size_;
  nb::object object_;
};

}  // namespace

std::string in_words(const nb::python_error& error) {
  const auto kind = nb::cast<std::string>(error.type().attr("__name__"));
  const std::string said = text_of(error.value());
  return said.empty() ? kind : kind + ": " + said;
}

void define_python_messages() {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (RaisedByHandler& raised) {
      raised.raise();
    }
  });
}

std::unique_ptr<Messages> python_messages(nb::object object) {
  return std::make_unique<PythonMessages>(std::move(object));
}

}  // namespace heed::python
