/* SPDX-License-Identifier: Apache-2.0
 *
 * wgmma with 64 rows of A and N rows of B, for every N from 8 to 256: d[64 x N] = a[64 x 16] . b[N x 16]^T, or d += it.
 * BF16 operands in shared memory, both K-major. An accumulator holds 4 floats of a thread for each 8 of N. */
#ifndef PURR_KERNELS_SM90A_WGMMA_CUH
#define PURR_KERNELS_SM90A_WGMMA_CUH

#include "ptx.cuh"

#ifdef PURR_HAS_WGMMA

namespace ptx {

template <int kN>
__device__ __forceinline__ void wgmma_m64nNk16_bf16(float *d, uint64_t a_descriptor, uint64_t b_descriptor,
                                                    bool accumulate);

/* The names of the accumulators of the first 8, 16, ... of N, and the operands behind them. */
#define PURR_NAMES_1 "%0, %1, %2, %3"
#define PURR_NAMES_2 PURR_NAMES_1 ", %4, %5, %6, %7"
#define PURR_NAMES_3 PURR_NAMES_2 ", %8, %9, %10, %11"
#define PURR_NAMES_4 PURR_NAMES_3 ", %12, %13, %14, %15"
#define PURR_NAMES_5 PURR_NAMES_4 ", %16, %17, %18, %19"
#define PURR_NAMES_6 PURR_NAMES_5 ", %20, %21, %22, %23"
#define PURR_NAMES_7 PURR_NAMES_6 ", %24, %25, %26, %27"
#define PURR_NAMES_8 PURR_NAMES_7 ", %28, %29, %30, %31"
#define PURR_NAMES_9 PURR_NAMES_8 ", %32, %33, %34, %35"
#define PURR_NAMES_10 PURR_NAMES_9 ", %36, %37, %38, %39"
#define PURR_NAMES_11 PURR_NAMES_10 ", %40, %41, %42, %43"
#define PURR_NAMES_12 PURR_NAMES_11 ", %44, %45, %46, %47"
#define PURR_NAMES_13 PURR_NAMES_12 ", %48, %49, %50, %51"
#define PURR_NAMES_14 PURR_NAMES_13 ", %52, %53, %54, %55"
#define PURR_NAMES_15 PURR_NAMES_14 ", %56, %57, %58, %59"
#define PURR_NAMES_16 PURR_NAMES_15 ", %60, %61, %62, %63"
#define PURR_NAMES_17 PURR_NAMES_16 ", %64, %65, %66, %67"
#define PURR_NAMES_18 PURR_NAMES_17 ", %68, %69, %70, %71"
#define PURR_NAMES_19 PURR_NAMES_18 ", %72, %73, %74, %75"
#define PURR_NAMES_20 PURR_NAMES_19 ", %76, %77, %78, %79"
#define PURR_NAMES_21 PURR_NAMES_20 ", %80, %81, %82, %83"
#define PURR_NAMES_22 PURR_NAMES_21 ", %84, %85, %86, %87"
#define PURR_NAMES_23 PURR_NAMES_22 ", %88, %89, %90, %91"
#define PURR_NAMES_24 PURR_NAMES_23 ", %92, %93, %94, %95"
#define PURR_NAMES_25 PURR_NAMES_24 ", %96, %97, %98, %99"
#define PURR_NAMES_26 PURR_NAMES_25 ", %100, %101, %102, %103"
#define PURR_NAMES_27 PURR_NAMES_26 ", %104, %105, %106, %107"
#define PURR_NAMES_28 PURR_NAMES_27 ", %108, %109, %110, %111"
#define PURR_NAMES_29 PURR_NAMES_28 ", %112, %113, %114, %115"
#define PURR_NAMES_30 PURR_NAMES_29 ", %116, %117, %118, %119"
#define PURR_NAMES_31 PURR_NAMES_30 ", %120, %121, %122, %123"
#define PURR_NAMES_32 PURR_NAMES_31 ", %124, %125, %126, %127"
#define PURR_SUMS_1 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define PURR_SUMS_2 PURR_SUMS_1, "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define PURR_SUMS_3 PURR_SUMS_2, "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
#define PURR_SUMS_4 PURR_SUMS_3, "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define PURR_SUMS_5 PURR_SUMS_4, "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19])
#define PURR_SUMS_6 PURR_SUMS_5, "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define PURR_SUMS_7 PURR_SUMS_6, "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27])
#define PURR_SUMS_8 PURR_SUMS_7, "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define PURR_SUMS_9 PURR_SUMS_8, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35])
#define PURR_SUMS_10 PURR_SUMS_9, "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define PURR_SUMS_11 PURR_SUMS_10, "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43])
#define PURR_SUMS_12 PURR_SUMS_11, "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define PURR_SUMS_13 PURR_SUMS_12, "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51])
#define PURR_SUMS_14 PURR_SUMS_13, "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define PURR_SUMS_15 PURR_SUMS_14, "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59])
#define PURR_SUMS_16 PURR_SUMS_15, "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define PURR_SUMS_17 PURR_SUMS_16, "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67])
#define PURR_SUMS_18 PURR_SUMS_17, "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
#define PURR_SUMS_19 PURR_SUMS_18, "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75])
#define PURR_SUMS_20 PURR_SUMS_19, "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define PURR_SUMS_21 PURR_SUMS_20, "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83])
#define PURR_SUMS_22 PURR_SUMS_21, "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87])
#define PURR_SUMS_23 PURR_SUMS_22, "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91])
#define PURR_SUMS_24 PURR_SUMS_23, "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])

#define PURR_SUMS_25 PURR_SUMS_24, "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99])
#define PURR_SUMS_26 PURR_SUMS_25, "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103])
#define PURR_SUMS_27 PURR_SUMS_26, "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107])
#define PURR_SUMS_28 PURR_SUMS_27, "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111])
#define PURR_SUMS_29 PURR_SUMS_28, "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115])
#define PURR_SUMS_30 PURR_SUMS_29, "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119])
#define PURR_SUMS_31 PURR_SUMS_30, "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123])
#define PURR_SUMS_32 PURR_SUMS_31, "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])

/* N, N / 8, and the numbers of the three operands that follow the accumulators. */
#define PURR_WGMMA(n, n8, a, b, p)                                                                                 \
  template <>                                                                                                      \
  __device__ __forceinline__ void wgmma_m64nNk16_bf16<n>(float *d, uint64_t a_descriptor, uint64_t b_descriptor,   \
                                                         bool accumulate) {                                        \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #p                                                             \
                 ", 0;"                                                                                            \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" PURR_NAMES_##n8 "}, %" #a ", %" #b   \
                                                                                              ", p, 1, 1, 0, 0; }" \
                 : PURR_SUMS_##n8                                                                                  \
                 : "l"(a_descriptor), "l"(b_descriptor), "r"((int)accumulate));                                    \
  }
PURR_WGMMA(8, 1, 4, 5, 6)
PURR_WGMMA(16, 2, 8, 9, 10)
PURR_WGMMA(24, 3, 12, 13, 14)
PURR_WGMMA(32, 4, 16, 17, 18)
PURR_WGMMA(40, 5, 20, 21, 22)
PURR_WGMMA(48, 6, 24, 25, 26)
PURR_WGMMA(56, 7, 28, 29, 30)
PURR_WGMMA(64, 8, 32, 33, 34)
PURR_WGMMA(72, 9, 36, 37, 38)
PURR_WGMMA(80, 10, 40, 41, 42)
PURR_WGMMA(88, 11, 44, 45, 46)
PURR_WGMMA(96, 12, 48, 49, 50)
PURR_WGMMA(104, 13, 52, 53, 54)
PURR_WGMMA(112, 14, 56, 57, 58)
PURR_WGMMA(120, 15, 60, 61, 62)
PURR_WGMMA(128, 16, 64, 65, 66)
PURR_WGMMA(136, 17, 68, 69, 70)
PURR_WGMMA(144, 18, 72, 73, 74)
PURR_WGMMA(152, 19, 76, 77, 78)
PURR_WGMMA(160, 20, 80, 81, 82)
PURR_WGMMA(168, 21, 84, 85, 86)
PURR_WGMMA(176, 22, 88, 89, 90)
PURR_WGMMA(184, 23, 92, 93, 94)
PURR_WGMMA(192, 24, 96, 97, 98)
PURR_WGMMA(200, 25, 100, 101, 102)
PURR_WGMMA(208, 26, 104, 105, 106)
PURR_WGMMA(216, 27, 108, 109, 110)
PURR_WGMMA(224, 28, 112, 113, 114)
PURR_WGMMA(232, 29, 116, 117, 118)
PURR_WGMMA(240, 30, 120, 121, 122)
PURR_WGMMA(248, 31, 124, 125, 126)
PURR_WGMMA(256, 32, 128, 129, 130)
#undef PURR_WGMMA
#undef PURR_NAMES_1
#undef PURR_NAMES_2
#undef PURR_NAMES_3
#undef PURR_NAMES_4
#undef PURR_NAMES_5
#undef PURR_NAMES_6
#undef PURR_NAMES_7
#undef PURR_NAMES_8
#undef PURR_NAMES_9
#undef PURR_NAMES_10
#undef PURR_NAMES_11
#undef PURR_NAMES_12
#undef PURR_NAMES_13
#undef PURR_NAMES_14
#undef PURR_NAMES_15
#undef PURR_NAMES_16
#undef PURR_NAMES_17
#undef PURR_NAMES_18
#undef PURR_NAMES_19
#undef PURR_NAMES_20
#undef PURR_NAMES_21
#undef PURR_NAMES_22
#undef PURR_NAMES_23
#undef PURR_NAMES_24
#undef PURR_NAMES_25
#undef PURR_NAMES_26
#undef PURR_NAMES_27
#undef PURR_NAMES_28
#undef PURR_NAMES_29
#undef PURR_NAMES_30
#undef PURR_NAMES_31
#undef PURR_NAMES_32
#undef PURR_SUMS_1
#undef PURR_SUMS_2
#undef PURR_SUMS_3
#undef PURR_SUMS_4
#undef PURR_SUMS_5
#undef PURR_SUMS_6
#undef PURR_SUMS_7
#undef PURR_SUMS_8
#undef PURR_SUMS_9
#undef PURR_SUMS_10
#undef PURR_SUMS_11
#undef PURR_SUMS_12
#undef PURR_SUMS_13
#undef PURR_SUMS_14
#undef PURR_SUMS_15
#undef PURR_SUMS_16
#undef PURR_SUMS_17
#undef PURR_SUMS_18
#undef PURR_SUMS_19
#undef PURR_SUMS_20
#undef PURR_SUMS_21
#undef PURR_SUMS_22
#undef PURR_SUMS_23
#undef PURR_SUMS_24
#undef PURR_SUMS_25
#undef PURR_SUMS_26
#undef PURR_SUMS_27
#undef PURR_SUMS_28
#undef PURR_SUMS_29
#undef PURR_SUMS_30
#undef PURR_SUMS_31
#undef PURR_SUMS_32
}  // namespace ptx

#endif

#endif
