// SPDX-License-Identifier: Apache-2.0
// What ranks/tests/attention.cpp claims, with processes for ranks. Every rank runs this program and compares
// its own rows.
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>

#include "cases/selection.hpp"
#include "heed/mpi.hpp"
#include "ranks/tests/backward_schedules.hpp"
#include "ranks/tests/layer_schedules.hpp"
#include "ranks/tests/schedules.hpp"
#include "ranks/tests/step_schedules.hpp"

namespace heed::cases {
namespace {

Group& world() {
  static Group group = mpi_group();
  return group;
}

TEST(RanksOverMpi, any_split_gives_the_bits_of_one_process) {
  const auto first = static_cast<std::uint64_t>(9000 + 100 * world().size());
  for (const std::uint64_t seed : seeds(first, first + 60))
    ASSERT_TRUE(has_the_bits_of_one_process(world(), seed));
}

TEST(RanksOverMpi, a_layer_gives_the_bits_of_one_process) {
  const auto first = static_cast<std::uint64_t>(9700 + 100 * world().size());
  for (const std::uint64_t seed : seeds(first, first + 20))
    ASSERT_TRUE(layer_has_the_bits_of_one_process(world(), seed));
}

TEST(RanksOverMpi, a_step_over_spread_caches_gives_the_bits_of_one_process) {
  const auto first = static_cast<std::uint64_t>(9500 + 100 * world().size());
  for (const std::uint64_t seed : seeds(first, first + 20))
    ASSERT_TRUE(step_has_the_bits_of_one_process(world(), seed));
}

TEST(RanksOverMpi, gradients_have_the_bits_of_one_process) {
  const auto first = static_cast<std::uint64_t>(9800 + 100 * world().size());
  for (const std::uint64_t seed : seeds(first, first + 20))
    ASSERT_TRUE(gradients_have_the_bits_of_one_process(world(), seed));
}

// Whether a multiply-add has the same bits in a vector as alone. Valgrind 3.19 rounds NEON's twice, so that a
// sum's bits depend on where it was computed.
bool vectors_round_as_scalars() {
#if defined(__aarch64__)
  volatile float x = 1 + 0x1p-12f;
  const float32x4_t vector = vdupq_n_f32(x);
  return vgetq_lane_f32(vfmaq_f32(vdupq_n_f32(-1), vector, vector), 0) == std::fma(x, x, -1.0f);
#else
  return true;
#endif
}

// Little enough for valgrind, to which it shows that no byte is read which nobody wrote, whatever the bits.
TEST(FewRanksOverMpi, one_call_of_each_kind_after_another_has_the_bits_of_one_process) {
  const bool bits_count = vectors_round_as_scalars();
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    ASSERT_TRUE(has_the_bits_of_one_process(world(), seed) || !bits_count);
    ASSERT_TRUE(layer_has_the_bits_of_one_process(world(), seed) || !bits_count);
    ASSERT_TRUE(gradients_have_the_bits_of_one_process(world(), seed) || !bits_count);
    ASSERT_TRUE(step_has_the_bits_of_one_process(world(), seed) || !bits_count);
  }
}

// A few calls bring MPI's own memory to where it stays; from then on nothing that is live grows with them.
TEST(ManyCallsOverMpi, leave_nothing_behind) {
  const Call whole{.q = Tensor::random({1, 2, 12, 8}, 1),
                   .k = Tensor::random({1, 1, 3000, 8}, 2),
                   .v = Tensor::random({1, 1, 3000, 8}, 3)};
  const Split split = split_sequence({12, 3000, 2, 1}, world().size());
  const Call call = call_of(whole, split.of_rank[static_cast<std::size_t>(world().rank())]);
  Results results(call, {});
  std::size_t before = 0;
  for (int n = 0; n < 1100; ++n) {
    if (n == 100) before = mallinfo2().uordblks;
    attention(world(), split, call.inputs(), results.outputs(), call.options());
  }
  EXPECT_LT(mallinfo2().uordblks, before + (std::size_t{64} << 10));  // less than 66 bytes for each call
}

// Of a job of its own: two ranks have room for it.
TEST(LongMessagesOverMpi, beyond_two_gibibytes_arrive) {
  const std::size_t bytes = (std::size_t{2} << 30) + 5;
  std::vector<std::byte> data(bytes);
  if (world().rank() == 0) data[7] = std::byte{1}, data[bytes - 1] = std::byte{2};
  world().broadcast("much", 0, data).wait();  // in pieces, each of which counts as moving
  EXPECT_EQ(data[7], std::byte{1});
  EXPECT_EQ(data[bytes - 1], std::byte{2});
}

// As if every rank, or every two of them, had a machine of its own: by MPI alone, and both ways at once.
TEST(RanksOverMpi, on_several_machines_have_the_bits_of_one_process) {
  for (const int ranks_of_machine : {1, 2}) {
    const int machine = world().rank() / ranks_of_machine;
    for (const OnFault on_fault : {OnFault::ends_the_job, OnFault::throws}) {
      Group group(std::make_unique<mpi::MpiMessages>(MPI_COMM_WORLD, on_fault, machine));
      const auto first = static_cast<std::uint64_t>(9300 + 100 * world().size());
      for (const std::uint64_t seed : seeds(first, first + 10)) {
        ASSERT_TRUE(has_the_bits_of_one_process(group, seed));
        ASSERT_TRUE(layer_has_the_bits_of_one_process(group, seed));
        ASSERT_TRUE(gradients_have_the_bits_of_one_process(group, seed));
        ASSERT_TRUE(step_has_the_bits_of_one_process(group, seed));
      }
      std::vector<std::byte> data(5'000'000);  // more than shared memory holds at once
      if (group.rank() == 0) data[7] = std::byte{1}, data.back() = std::byte{2};
      group.broadcast("much", 0, data).wait();
      EXPECT_EQ(data[7], std::byte{1});
      EXPECT_EQ(data.back(), std::byte{2});
    }
  }
}

// A file may have no more than 1000 bytes while the group is made.
TEST(RanksOverMpi, without_memory_to_share_have_the_bits_of_one_process) {
  world();  // MPI has files of its own
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1000, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_THROW(SharedMemory(bytes_of_shared_messages(2)), Error);
  Group group = mpi_group();
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  for (const std::uint64_t seed : seeds(9910, 9920)) ASSERT_TRUE(has_the_bits_of_one_process(group, seed));
}

TEST(RanksOverMpi, of_a_part_of_the_job_have_the_bits_of_one_process) {
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, world().rank() % 2, -world().rank(), &part);
  {
    Group group = mpi_group(part);
    for (const std::uint64_t seed : seeds(9900, 9910)) ASSERT_TRUE(has_the_bits_of_one_process(group, seed));
  }
  MPI_Comm_free(&part);
}

TEST(RanksOverMpi, the_callers_own_messages_are_left_alone) {
  Group group = mpi_group(MPI_COMM_WORLD, {}, OnFault::throws);
  const int next = (group.rank() + 1) % group.size(),
            before = (group.rank() + group.size() - 1) % group.size();
  int sent = group.rank(), received = -1;
  MPI_Request requests[2];
  MPI_Irecv(&received, 1, MPI_INT, before, 0, MPI_COMM_WORLD, &requests[0]);
  MPI_Isend(&sent, 1, MPI_INT, next, 0, MPI_COMM_WORLD, &requests[1]);
  EXPECT_TRUE(has_the_bits_of_one_process(group, 77));
  MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
  EXPECT_EQ(received, before);
}

}  // namespace
}  // namespace heed::cases
