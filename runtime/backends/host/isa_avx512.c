#if defined(__x86_64__)
#define PURR__ISA_AVX512
#define PURR__ISA_NAME avx512
#include "backends/host/kernels.inc"
#endif
