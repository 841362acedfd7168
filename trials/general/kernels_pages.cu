// Caches: many rows and few.
#include "general/launch.cuh"
namespace heed::cuda::general {
using Many128 = Shape<Type::bf16, 128, 128, 32, 4, 1, 64, 2, 0, 2>;
using Every128 = Shape<Type::bf16, 128, 128, 32, 4, 1, 32, 3, 0, 2>;
template <int d>
using Few16 = Shape<Type::bf16, d, d, 16, 1, 4, 64, 3, d <= 128 ? d / 16 : 0, 2>;
using Few256 = Shape<Type::bf16, 256, 256, 16, 1, 4, 64, 2, 0, 1>;
static const Enter enter(
    entry<Many128, Pages, RangesOnly>("d128.pages", false),
    entry<Every128, Pages, EveryOption>("d128.pages.every", false),
    entry<Every128, Int8Pages, EveryOption>("d128.int8.every", false),
    entry<Few16<128>, Pages, RangesOnly>("d128.pages.few16", true),
    entry<Few16<80>, Pages, RangesOnly>("d80.pages.few16", true),
    entry<Few16<96>, Pages, RangesOnly>("d96.pages.few16", true),
    entry<Few256, Pages, RangesOnly>("d256.pages.few16", true),
    entry<Few16<128>, Int8Pages, RangesOnly>("d128.int8.few16", true));
}
