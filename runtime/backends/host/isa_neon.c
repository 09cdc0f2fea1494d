#if defined(__aarch64__)
#define PURR__ISA_NEON
#define PURR__ISA_NAME neon
#include "backends/host/kernels.inc"
#endif
