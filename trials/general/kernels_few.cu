// Few rows, arrays.
#include "general/launch.cuh"
namespace heed::cuda::general {
template <Type type>
using Few16 = Shape<type, 128, 128, 16, 1, 4, 64, 3, 8, 2>;
template <Type type>
using Few64 = Shape<type, 128, 128, 32, 2, 2, 64, 2, 0, 2>;
using Many = Shape<Type::f16, 128, 128, 32, 4, 1, 64, 2, 0, 2>;
using Every = Shape<Type::f16, 128, 128, 32, 4, 1, 32, 3, 0, 2>;
static const Enter enter(
    entry<Few16<Type::bf16>, Arrays, RangesOnly>("d128.few16", true),
    entry<Few64<Type::bf16>, Arrays, RangesOnly>("d128.few64", true),
    entry<Few16<Type::bf16>, Arrays, EveryOption>("d128.few16.every", true),
    entry<Few16<Type::f16>, Arrays, EveryOption>("d128.f16.few16.every", true),
    entry<Every, Arrays, EveryOption>("d128.f16.every", false),
    entry<Many, Arrays, RangesOnly>("d128.f16", false));
}
