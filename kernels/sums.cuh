/* SPDX-License-Identifier: Apache-2.0
 *
 * Long sums on tensor cores. They add the products of 16 k to an accumulator and cut off what does not fit it, always
 * toward zero, where a processor would round to nearest: every such step takes the same small part of the accumulator
 * in the mean, PURR__STEP_LOSS, and n steps n times as much. So kernels give it back: at the ends of a sum's parts,
 * when the tensor cores are done with it, they multiply it by a little more than one.
 *
 * What was lost in a part is about the mean of what the sum was at both its ends, times the steps between them. The
 * factor at an end makes up for half of the part before it and half of the part after it. Where the ends are hangs on
 * the length of the sum alone, and so do its bits. */
#ifndef PURR_KERNELS_SUMS_CUH
#define PURR_KERNELS_SUMS_CUH

#include "layout.h"

namespace purr {
namespace {

/* Where the part ends that begins at `begin`; all in stages of kStageK. is_early: the first part is half as long, so
 * that two warpgroups take turns at the tensor cores. */
template <int kStageK>
__device__ __forceinline__ int end_of_part(int begin, int stages, bool is_early) {
  constexpr int kPart = PURR__SUM_PART_K / kStageK, kWhole = PURR__SUM_WHOLE_K / kStageK;
  static_assert(PURR__SUM_PART_K % (2 * kStageK) == 0 && PURR__SUM_WHOLE_K % kStageK == 0, "whole stages");
  const int before = is_early ? kPart / 2 : 0;
  return stages <= kWhole ? stages : min(stages, (begin + before) / kPart * kPart + kPart - before);
}

/* What a sum is multiplied by at the end of a part, so many stages after the end before and before the next one. */
template <int kStageK>
__device__ __forceinline__ float give_back(int stages_between) {
  return 1.0f + PURR__STEP_LOSS / 2 * (kStageK / 16) * (float)stages_between;
}

}  // namespace
}  // namespace purr

#endif
