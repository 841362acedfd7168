// SPDX-License-Identifier: Apache-2.0
// Which ranks of MPI share a machine, and the memory they share. Part of heed/mpi.hpp.
#pragma once
#include <mpi.h>

#include <exception>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include "heed/mpi_pieces.hpp"
#include "heed/shared_memory.hpp"
#include "heed/version.hpp"

namespace HEED_NAMESPACE::mpi {

// The ranks that share this one's machine: those that MPI says, or that say the same number.
class Machine {
 public:
  Machine(MPI_Comm comm, std::optional<int> number) {
    check(number ? MPI_Comm_split(comm, *number, 0, &comm_)
                 : MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &comm_));
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
  }
  ~Machine() { MPI_Comm_free(&comm_); }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  int size() const { return size_; }

  // The rank here of every rank of a communicator, or -1.
  std::vector<int> ranks_here(MPI_Comm comm) const {
    MPI_Group all = MPI_GROUP_NULL, here = MPI_GROUP_NULL;
    MPI_Comm_group(comm, &all);
    MPI_Comm_group(comm_, &here);
    int count = 0;
    MPI_Comm_size(comm, &count);
    std::vector<int> of_all(static_cast<std::size_t>(count)), of_here(of_all.size());
    std::iota(of_all.begin(), of_all.end(), 0);
    check(MPI_Group_translate_ranks(all, count, of_all.data(), here, of_here.data()));
    for (int& rank : of_here)
      if (rank == MPI_UNDEFINED) rank = -1;
    MPI_Group_free(&all);
    MPI_Group_free(&here);
    return of_here;
  }

  // Null on all of them where one has not the memory, or uses it in another way.
  std::unique_ptr<Messages> messages() const {
    struct Word {
      int layout = layout_of_shared_messages();
      char name[124] = {};
    } first{};
    const std::size_t bytes = bytes_of_shared_messages(size_);
    std::optional<SharedMemory> memory;
    if (rank_ == 0) try_to([&] { memory.emplace(bytes); });
    if (memory) memory->name().copy(first.name, sizeof first.name - 1);
    check(MPI_Bcast(&first, sizeof first, MPI_BYTE, 0, comm_));
    if (rank_ != 0 && first.layout == layout_of_shared_messages())
      try_to([&] { memory.emplace(first.name, bytes); });
    int is_there = memory.has_value(), are_all = 0;
    check(MPI_Allreduce(&is_there, &are_all, 1, MPI_INT, MPI_MIN, comm_));
    if (!are_all) return nullptr;
    memory->forget_name();
    return messages_in(std::move(*memory), rank_, size_);
  }

 private:
  template <class Make>
  static void try_to(const Make& make) {
    try {
      make();
    } catch (const std::exception&) {  // MPI will do
    }
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
};

}  // namespace HEED_NAMESPACE::mpi
