// Many rows, arrays, ranges: other head sizes.
#include "general/launch.cuh"
namespace heed::cuda::general {
#define ROWS(d, v, wr, rw, keys, stages, held, blocks) Shape<Type::bf16, d, v, wr, rw, 1, keys, stages, held, blocks>
#define PLAIN(name, ...) entry<ROWS(__VA_ARGS__), Arrays, RangesOnly>(name, false)
static const Enter enter(
    PLAIN("d48", 48, 48, 32, 4, 64, 2, 3, 2),
    PLAIN("d80", 80, 80, 32, 4, 64, 2, 0, 2),
    PLAIN("d96", 96, 96, 32, 4, 64, 2, 0, 2),
    PLAIN("d192.128", 192, 128, 32, 4, 32, 2, 0, 2));
}
