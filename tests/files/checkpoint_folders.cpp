// SPDX-License-Identifier: Apache-2.0
// Folders of safetensors files: one file or shards, only what is asked for is read, hostile indices.
#include <sys/resource.h>
#include <unistd.h>

#include "allocation_meter.hpp"
#include "files/checkpoint_folder.hpp"
#include "hostile_file.hpp"
#include "sample_arrays.hpp"

namespace heed::test {
namespace {

using files::CheckpointFolder;

class checkpoint_folders : public ScratchFolder {
 protected:
  void SetUp() override {
    ScratchFolder::SetUp();
    std::filesystem::create_directory("m");
  }
};

constexpr const char* index_file = "m/model.safetensors.index.json";

TEST_F(checkpoint_folders, arrays_of_one_file_and_of_shards_come_back) {
  const Arrays first{{"a", random_array(Element::f32, {3, 2}, 1)},
                     {"b", random_array(Element::bf16, {5}, 2)}};
  const Arrays second{{"c", random_array(Element::i64, {2}, 3)}};
  write_safetensors("m/model-1.safetensors", first);
  write_safetensors("m/model-2.safetensors", second);
  put_file(index_file, R"({"metadata": {"total_size": 50, "more": [{}]}, "weight_map": {
      "a": "model-1.safetensors", "b": "model-1.safetensors", "c": "model-2.safetensors"}})");
  for (int kind = 0; kind < 2; ++kind) {
    CheckpointFolder folder("m");
    EXPECT_EQ(folder.names(), (std::vector<std::string>{"a", "b", "c"}));
    EXPECT_TRUE(folder.has("c"));
    EXPECT_FALSE(folder.has("d"));
    for (int again = 0; again < 2; ++again) {
      EXPECT_TRUE(same(folder.read("c"), second.at("c")));
      EXPECT_TRUE(same(folder.read("a"), first.at("a")));
      EXPECT_TRUE(same(folder.read("b"), first.at("b")));
    }
    Arrays all = first;
    all.insert(second.begin(), second.end());
    write_safetensors("m/model.safetensors", all);  // which then is the one that counts
    put_file(index_file, "not even JSON");
  }
}

TEST_F(checkpoint_folders, other_arrays_and_other_shards_are_not_read) {
  // 8 GiB of zeros that are on no disk, before the array that is asked for.
  const std::string header = R"({"huge":{"dtype":"F32","shape":[2147483648],"data_offsets":[0,8589934592]},)"
                             R"("small":{"dtype":"F32","shape":[2],"data_offsets":[8589934592,8589934600]}})";
  put_file("m/shard", safetensors_bytes(header));
  const auto begin = static_cast<std::uintmax_t>(8 + header.size());
  std::filesystem::resize_file("m/shard", begin + 8589934600u);
  put_file(index_file, R"({"weight_map": {"huge": "shard", "small": "shard", "gone": "no such file"}})");
  const AllocationMeter meter;
  CheckpointFolder folder("m");
  EXPECT_EQ(folder.read("small").to_floats(), (std::vector<float>{0, 0}));
  EXPECT_LT(meter.peak(), 100000u);
  EXPECT_EQ(refusal([&] { folder.read("gone"); }),
            "file: m/no such file: cannot be opened: No such file or directory");
}

TEST_F(checkpoint_folders, a_folder_without_weights_is_refused) {
  EXPECT_EQ(refusal([] { CheckpointFolder folder("m"); }),
            "file: m: has neither model.safetensors nor model.safetensors.index.json");
  put_file("m/pytorch_model.bin", "");
  put_file("m/model.gguf", "");
  EXPECT_EQ(refusal([] { CheckpointFolder folder("m"); }),
            "file: m: has neither model.safetensors nor model.safetensors.index.json; it has "
            "\"model.gguf\" and 1 more");
}

// No more files can be opened while this lives.
class NoMoreFiles {
 public:
  NoMoreFiles() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const int next = dup(0);
    close(next);
    const rlimit none{static_cast<rlim_t>(next), before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoMoreFiles() { setrlimit(RLIMIT_NOFILE, &before_); }
  NoMoreFiles(const NoMoreFiles&) = delete;
  NoMoreFiles& operator=(const NoMoreFiles&) = delete;

 private:
  rlimit before_{};
};

TEST_F(checkpoint_folders, a_folder_that_cannot_be_listed_is_refused_as_any_other) {
  const NoMoreFiles no_more_files;
  EXPECT_EQ(refusal([] { CheckpointFolder folder("m"); }),
            "file: m: has neither model.safetensors nor model.safetensors.index.json");
}

int index_failures(const std::vector<HostileFile>& cases) {
  return count_failures(cases, [](const char*) {
    put_file(index_file, file_bytes("x"));
    CheckpointFolder("m").read("a");
  });
}

TEST_F(checkpoint_folders, hostile_indices_are_refused) {
  write_safetensors("m/s", {{"b", random_array(Element::f32, {3}, 1)}});
  write_safetensors("outside", {{"a", random_array(Element::f32, {3}, 1)}});
  const std::string file = std::string("file: ") + index_file + ": ";
  const auto elsewhere = [&](const char* name) {
    return file + "weight_map: tensor \"a\" is in \"" + name +
           "\", which is not the name of a file in the folder";
  };
  const std::string here = std::filesystem::current_path().string() + "/outside";
  const std::vector<std::pair<std::string, std::string>> cases{
      {R"({"weight_map": {"a": "../outside"}})", elsewhere("../outside")},
      {R"({"weight_map": {"a": "sub/../../outside"}})", elsewhere("sub/../../outside")},
      {R"({"weight_map": {"a": ")" + here + "\"}}", elsewhere(here.c_str())},
      {R"({"weight_map": {"a": "..\\outside"}})", elsewhere("..\\\\outside")},
      {R"({"weight_map": {"a": "s\u0000"}})", elsewhere("s\\u0000")},
      {R"({"weight_map": {"a": ".."}})", elsewhere("..")},
      {R"({"weight_map": {"a": ""}})", elsewhere("")},
      {R"({"weight_map": {"a": "s"}})",
       "file: m/s: has no tensor \"a\", which model.safetensors.index.json says is there"},
      {R"({"weight_map": {"a": "s", "a": "s"}})", file + "byte 29: tensor \"a\" appears twice"},
      {R"({"weight_map": {}, "weight_map": {}})", file + "key \"weight_map\" appears twice"},
      {R"({"weight_map": {"a": 1}})", file + "byte 21: expected a string, found '1'"},
      {R"({"weight_map": ["a"]})", file + "byte 15: expected '{', found '['"},
      {R"({"metadata": {}})", file + "has no weight_map"},
      {R"({})", file + "has no weight_map"},
      {R"({"weight_map": {)", file + "byte 16: expected a string, found the end"},
      {"{\"x\": " + std::string(5000, '[') + "}", file + "byte 37: a value nested more than 32 deep"},
      {"PK\3\4", file + "is a zip archive, as PyTorch's .pt and NumPy's .npz files are, not JSON"},
  };
  std::vector<HostileFile> files;
  for (const auto& [text, sentence] : cases) files.push_back({text, sentence.c_str()});
  EXPECT_EQ(index_failures(files), 0);
}

}  // namespace
}  // namespace heed::test
