# The kernels that the trial compiles, one file each: kernels.py FOLDER writes them.
# name: shape (dim, value_dim, rows of a warp, row warps, key warps, keys of a tile, stages, held steps, blocks of an SM), source, stage, few?
import sys
many = {64: "64, 64, 32, 4, 1, 64, 2, 4, 2", 48: "48, 48, 32, 4, 1, 64, 2, 3, 2", 80: "80, 80, 32, 4, 1, 64, 2, 0, 2", 96: "96, 96, 32, 4, 1, 64, 2, 0, 2",
        128: "128, 128, 32, 4, 1, 64, 2, 0, 2", "192.128": "192, 128, 32, 4, 1, 32, 2, 0, 2", 256: "256, 256, 16, 8, 1, 64, 2, 0, 1"}
every = {64: "64, 64, 32, 4, 1, 64, 2, 0, 2", 128: "128, 128, 32, 4, 1, 32, 3, 0, 2", 256: "256, 256, 16, 8, 1, 64, 2, 0, 1"}
few16 = {80: "80, 80, 16, 1, 4, 64, 3, 5, 2", 96: "96, 96, 16, 1, 4, 64, 3, 6, 2", 128: "128, 128, 16, 1, 4, 64, 3, 8, 2", 256: "256, 256, 16, 1, 4, 64, 2, 0, 1"}
few64 = "128, 128, 32, 2, 2, 64, 2, 0, 2"
kernels = [(f"d{d}", "bf16", s, "Arrays", "RangesOnly", 0) for d, s in many.items()]
kernels += [(f"d{d}.every", "bf16", s, "Arrays", "EveryOption", 0) for d, s in every.items()]
kernels += [("d128.masked", "bf16", many[128], "Arrays", "Masked", 0), ("d128.changed", "bf16", many[128], "Arrays", "Changed", 0), ("d128.biased", "bf16", every[128], "Arrays", "Biased", 0),
            ("d128.pages.masked", "bf16", many[128], "Pages", "Masked", 0), ("d128.int8.masked", "bf16", every[128], "Int8Pages", "Masked", 0)]
kernels += [("d128.pages", "bf16", many[128], "Pages", "RangesOnly", 0), ("d128.pages.every", "bf16", every[128], "Pages", "EveryOption", 0),
            ("d128.int8.every", "bf16", every[128], "Int8Pages", "EveryOption", 0), ("d128.int8.few16", "bf16", few16[128], "Int8Pages", "RangesOnly", 1)]
kernels += [(f"d{d}.pages.few16", "bf16", s, "Pages", "RangesOnly", 1) for d, s in few16.items()]
kernels += [("d128.few16", "bf16", few16[128], "Arrays", "RangesOnly", 1), ("d128.few64", "bf16", few64, "Arrays", "RangesOnly", 1),
            ("d128.few16.every", "bf16", few16[128], "Arrays", "EveryOption", 1), ("d128.f16.few16.every", "f16", few16[128], "Arrays", "EveryOption", 1),
            ("d128.f16.every", "f16", every[128], "Arrays", "EveryOption", 0)]
kernels += [("?d128.biased.k64", "bf16", many[128], "Arrays", "Biased", 0)]
head = "// Written by kernels.py.\n#include \"general/launch.cuh\"\nnamespace heed::cuda::general {\n"
for n, (name, type_, shape, source, stage, few) in enumerate(kernels):
    made = (f"entry_with_inspection<Shape<Type::{type_}, {shape}>, {source}>" if name == "d128.every" else f"entry<Shape<Type::{type_}, {shape}>, {source}, {stage}>")
    open(f"{sys.argv[1]}/k{n:02d}.cu", "w").write(head + f"static const Enter enter({made}(\"{name}\", {'true' if few else 'false'}));\n}}\n")
open(f"{sys.argv[1]}/k_slabs.cu", "w").write(head.replace("launch.cuh\"", "launch.cuh\"\n#include \"general/slabs.cuh\"") + '''using Slab = Shape<Type::bf16, 128, slab_dims, 16, 4, 1, 64, 3, 0, 2>;
static Kernel slab(SourceKind source) {
  return {"slabs", Type::bf16, any_dim, any_dim, Slab::rows, source, 15, false, Slab::threads, static_cast<int>(sizeof(SlabMemory<Slab>)), Slab::blocks,
          Slab::tile_keys, Slab::key_warps, reinterpret_cast<const void*>(&attend_slab<Slab>), reinterpret_cast<const void*>(&merge<Slab::type>)};
}
static const Enter enter(slab(SourceKind::arrays), slab(SourceKind::pages), slab(SourceKind::int8_pages));
}
''')
