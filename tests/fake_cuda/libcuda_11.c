/* A CUDA driver from before version 12: it has no cuGetProcAddress_v2. */
#include "driver/cuda_api.h"

__attribute__((visibility("default"))) CUresult cuDriverGetVersion(int *version);
CUresult cuDriverGetVersion(int *version) {
  *version = 11040;
  return CUDA_SUCCESS;
}
