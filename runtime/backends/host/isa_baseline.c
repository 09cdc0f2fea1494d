#define PURR__ISA_NAME baseline
#include "backends/host/kernels.inc"
