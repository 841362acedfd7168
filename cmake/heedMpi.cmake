# heed::mpi: heed/mpi.hpp and the MPI it is compiled with. There is nothing to build, so that a program has the MPI it found
# itself. Included by heed's own build (HEED_MPI) and by find_package(heed COMPONENTS mpi).
if(NOT TARGET MPI::MPI_CXX)
  set(MPI_CXX_SKIP_MPICXX ON)  # the bindings for C++ that MPI has given up
  find_package(MPI REQUIRED COMPONENTS CXX)
endif()
if(NOT TARGET heed::mpi)
  add_library(heed::mpi INTERFACE IMPORTED)
  target_link_libraries(heed::mpi INTERFACE heed::ranks MPI::MPI_CXX)
endif()
