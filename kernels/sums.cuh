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

/* How the parts of a sum lie, counted in stages of kStageK; a sum no longer than a part is one. is_early: the first is
 * half as long, so that two warpgroups do not leave the tensor cores alone at the same time. */
template <int kStageK>
struct SumParts {
  static constexpr int kPart = PURR__SUM_PART_K / kStageK;
  static_assert(PURR__SUM_PART_K % (2 * kStageK) == 0, "whole stages");
  int stages;
  bool is_early;

  __device__ __forceinline__ int first() const { return is_early ? kPart / 2 : kPart; }

  /* Whether a part ends behind `done` stages, and another follows. */
  __device__ __forceinline__ bool ends_at(int done) const {
    return done % kPart == first() % kPart && stages > kPart && done < stages;
  }

  /* What the sum is multiplied by where a part ends, behind the last one too: it makes up for half of the part before
   * and half of the part after. */
  __device__ __forceinline__ float factor_at(int done) const {
    int begin = 0;
    if (stages > kPart && done > first()) begin = (done - 1 - first()) / kPart * kPart + first();
    const int end = min(done + kPart, stages);
    return 1.0f + PURR__STEP_LOSS / 2 * (kStageK / 16) * (float)(end - begin);
  }
};

}  // namespace
}  // namespace purr

#endif
