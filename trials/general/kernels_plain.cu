// Many rows, arrays, ranges: the shapes whose speed is raced. Names that begin with ? are variants, chosen by name alone.
#include "general/launch.cuh"
namespace heed::cuda::general {
#define ROWS(d, v, wr, rw, keys, stages, held, blocks) Shape<Type::bf16, d, v, wr, rw, 1, keys, stages, held, blocks>
#define PLAIN(name, ...) entry<ROWS(__VA_ARGS__), Arrays, RangesOnly>(name, false)
static const Enter enter(
    PLAIN("d64", 64, 64, 32, 4, 64, 2, 4, 2),
    PLAIN("d128", 128, 128, 32, 4, 64, 2, 0, 2),
    PLAIN("d256", 256, 256, 16, 8, 64, 2, 0, 1),
    PLAIN("?d64.k128", 64, 64, 32, 4, 128, 2, 0, 2),
    PLAIN("?d128.k32", 128, 128, 32, 4, 32, 3, 0, 2),
    PLAIN("?d128.h2", 128, 128, 32, 4, 64, 2, 2, 2),
    PLAIN("?d256.w4", 256, 256, 16, 4, 32, 2, 0, 2),
    PLAIN("?d256.h16", 256, 256, 16, 8, 32, 2, 16, 1));
}
