#if defined(__x86_64__)
#define PURR__ISA_AVX2
#define PURR__ISA_NAME avx2
#include "backends/host/kernels.inc"
#endif
