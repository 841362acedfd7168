// Many rows, arrays, every option.
#include "general/launch.cuh"
namespace heed::cuda::general {
#define ROWS(d, v, wr, rw, keys, stages, held, blocks) Shape<Type::bf16, d, v, wr, rw, 1, keys, stages, held, blocks>
#define EVERY(name, ...) entry<ROWS(__VA_ARGS__), Arrays, EveryOption>(name, false)
static const Enter enter(
    EVERY("d64.every", 64, 64, 32, 4, 64, 2, 0, 2),
    EVERY("d128.every", 128, 128, 32, 4, 32, 3, 0, 2),
    EVERY("?d128.every.k64", 128, 128, 32, 4, 64, 2, 0, 2),
    EVERY("d256.every", 256, 256, 16, 8, 64, 2, 0, 1));
}
