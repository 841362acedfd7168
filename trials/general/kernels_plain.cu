// Many rows, arrays, ranges: the shapes whose speed is raced. Names that begin with ? are variants, chosen by name alone.
#include "general/launch.cuh"
namespace heed::cuda::general {
#define ROWS(d, v, wr, rw, keys, stages, held, blocks) Shape<Type::bf16, d, v, wr, rw, 1, keys, stages, held, blocks>
#define PLAIN(name, ...) entry<ROWS(__VA_ARGS__), Arrays, RangesOnly>(name, false)
static const Enter enter(
    PLAIN("d64", 64, 64, 32, 4, 64, 2, 4, 2),
    PLAIN("d128", 128, 128, 32, 4, 64, 2, 0, 2),
    PLAIN("d256", 256, 256, 16, 8, 64, 2, 0, 1),
    PLAIN("?d64.h0.b3", 64, 64, 32, 4, 64, 2, 0, 3),
    PLAIN("?d128.h2", 128, 128, 32, 4, 64, 2, 2, 2),
    PLAIN("?d128.w8", 128, 128, 32, 8, 64, 2, 0, 1),
    PLAIN("?d128.r16", 128, 128, 16, 8, 64, 2, 8, 1),
    PLAIN("?d256.h16", 256, 256, 16, 8, 32, 2, 16, 1));
}
