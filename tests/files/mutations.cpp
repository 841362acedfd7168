// SPDX-License-Identifier: Apache-2.0
// Damaged files: every reader returns whole arrays or throws Error, within bounded memory.
#include <algorithm>
#include <exception>
#include <functional>
#include <random>

#include "allocation_meter.hpp"
#include "sample_arrays.hpp"
#include "scratch_folder.hpp"

namespace heed::test {
namespace {

struct Contents {
  Arrays arrays{};
  Metadata metadata{};
};

struct Kind {
  const char* name;
  std::string valid;                           // the bytes of a good file
  std::size_t header_bytes;                    // where its data begins
  std::function<Contents(const char*)> read;   // of a file
  std::function<void(const Contents&)> write;  // to the file "again"
};

Contents read_both(const char* file) {
  Contents contents;
  contents.arrays = read_safetensors(file, &contents.metadata);
  return contents;
}

std::vector<Kind> kinds() {
  const Arrays arrays{{"weight", random_array(Element::f32, {3, 4}, 1)},
                      {"b\xc3\xa9\n", random_array(Element::bf16, {5}, 2)},
                      {"mask", random_array(Element::boolean, {2, 1, 3}, 3)},
                      {"none", random_array(Element::i64, {0, 7}, 4)},
                      {"scalar", random_array(Element::u64, {}, 5)}};
  write_safetensors("valid", arrays, {{"format", "pt"}, {"note\xc3\xa9", "\"\n"}});
  const std::string safetensors = file_bytes("valid");
  write_npy("valid", random_array(Element::i16, {3, 2, 4}, 6));
  const std::string npy = file_bytes("valid");
  std::string fortran = npy;
  fortran.replace(fortran.find("False"), 5, "True ");

  const auto read_one = [](const char* file) { return Contents{{{"array", read_npy(file)}}}; };
  const auto write_one = [](const Contents& one) { write_npy("again", one.arrays.begin()->second); };
  const Kind npy_kind{"npy", npy, 128, read_one, write_one};
  Kind fortran_kind = npy_kind;
  fortran_kind.name = "npy in Fortran order";
  fortran_kind.valid = fortran;
  return {{"safetensors", safetensors, safetensors.find("  ") + 1, read_both,
           [](const Contents& all) { write_safetensors("again", all.arrays, all.metadata); }},
          npy_kind,
          fortran_kind};
}

// One to three changes, most of them in the header, where they mean something.
std::string damaged(const Kind& kind, std::mt19937_64& random) {
  static const std::string likely = "0123456789[]{}(),:\"'\\ <|>fVuU\n\xff";
  std::string bytes = kind.valid;
  for (std::uint64_t changes = 1 + random() % 3; changes > 0 && !bytes.empty(); --changes) {
    const std::size_t end = random() % 4 == 0 ? bytes.size() : std::min(kind.header_bytes, bytes.size());
    const std::size_t at = random() % end;
    const char byte =
        random() % 2 == 0 ? likely[random() % likely.size()] : static_cast<char>(random() >> 56);
    switch (random() % 6) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
        break;
      case 1:
        bytes[at] = byte;
        break;
      case 2:
        bytes.insert(at, 1, byte);
        break;
      case 3:
        bytes.erase(at, 1 + random() % 4);
        break;
      case 4:
        bytes.resize(random() % 2 == 0 ? at : bytes.size() + random() % 16);
        break;
      default:
        bytes.insert(at, bytes.substr(at, 1 + random() % 40));
    }
  }
  return bytes;
}

bool same_contents(const Contents& a, const Contents& b) {
  return a.metadata == b.metadata && a.arrays.size() == b.arrays.size() &&
         std::equal(a.arrays.begin(), a.arrays.end(), b.arrays.begin(), [](const auto& x, const auto& y) {
           return x.first == y.first && same(x.second, y.second);
         });
}

// "", or what is wrong with how the reader took the file "m".
std::string complaint(const Kind& kind, std::size_t file_size, int& accepted) {
  const AllocationMeter meter;
  try {
    const Contents contents = kind.read("m");
    if (meter.peak() > 8 * file_size + 65536) return "held " + std::to_string(meter.peak()) + " bytes";
    ++accepted;
    kind.write(contents);
    if (!same_contents(kind.read("again"), contents)) return "accepted what does not survive a round trip";
  } catch (const Error& error) {
    if (std::string(error.what()).size() < 8) return "a sentence too short: " + std::string(error.what());
    if (meter.peak() > 8 * file_size + 65536) return "held " + std::to_string(meter.peak()) + " bytes";
  } catch (const std::exception& other) {
    return std::string("threw something else: ") + other.what();
  }
  return "";
}

class mutations : public ScratchFolder {};

TEST_F(mutations, damaged_files_are_read_whole_or_refused) {
  constexpr int trials = 1500;
  for (const Kind& kind : kinds()) {
    int failures = 0, accepted = 0;
    for (int seed = 0; seed < trials; ++seed) {
      std::mt19937_64 random(static_cast<std::uint64_t>(seed));
      const std::string bytes = damaged(kind, random);
      put_file("m", bytes);
      const std::string wrong = complaint(kind, bytes.size(), accepted);
      if (wrong.empty()) continue;
      ++failures;
      ADD_FAILURE() << kind.name << ", seed " << seed << ": " << wrong;
    }
    EXPECT_EQ(failures, 0) << kind.name;
    // Damage that never gets past the first check, or never does any harm, would test nothing.
    EXPECT_GT(accepted, trials / 200) << kind.name;
    EXPECT_LT(accepted, trials / 2) << kind.name;
  }
}

TEST_F(mutations, no_part_of_a_file_passes_for_the_whole) {
  for (const Kind& kind : kinds()) {
    int accepted = 0;
    for (std::size_t length = 0; length < kind.valid.size(); ++length) {
      put_file("m", kind.valid.substr(0, length));
      const std::string found = refusal([&] { kind.read("m"); });
      if (found != "nothing") continue;
      ++accepted;
      ADD_FAILURE() << kind.name << " cut to " << length << " bytes was read";
    }
    EXPECT_EQ(accepted, 0) << kind.name;
    put_file("m", kind.valid + '\0');
    EXPECT_NE(refusal([&] { kind.read("m"); }), "nothing") << kind.name << " and one byte more was read";
    put_file("m", kind.valid);
    EXPECT_EQ(refusal([&] { kind.read("m"); }), "nothing") << kind.name;
  }
}

}  // namespace
}  // namespace heed::test
