// Small kernels whose images the tests parse, package, load and launch. make.sh compiles them.

// out[i] = a[i] + b[i]
struct vector_add_params {
  float *out;
  const float *a, *b;
  int count;
};
extern "C" __global__ void __launch_bounds__(128) vector_add(const __grid_constant__ vector_add_params p) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < p.count) p.out[i] = p.a[i] + p.b[i];
}

// Fills `bytes` bytes of dynamic shared memory with a pattern and sums it up: 16 static bytes beside it.
struct shared_sum_params {
  unsigned *out;
  int bytes;
};
extern "C" __global__ void __launch_bounds__(128) shared_sum(const __grid_constant__ shared_sum_params p) {
  __shared__ unsigned sums[4];
  extern __shared__ unsigned char pattern[];
  if (threadIdx.x < 4) sums[threadIdx.x] = 0;
  for (int i = threadIdx.x; i < p.bytes; i += blockDim.x) pattern[i] = (unsigned char)(i * 31 + 7);
  __syncthreads();
  unsigned sum = 0;
  for (int i = p.bytes - 1 - threadIdx.x; i >= 0; i -= blockDim.x) sum += pattern[i];
  atomicAdd(&sums[threadIdx.x / 32], sum);
  __syncthreads();
  if (threadIdx.x == 0) *p.out = sums[0] + sums[1] + sums[2] + sums[3];
}

// Runs until *flag is not 0, but no longer than 20 seconds; writes to *out whether it saw that.
struct spin_params {
  const volatile int *flag;
  int *out;
};
extern "C" __global__ void spin(const __grid_constant__ spin_params p) {
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (*p.flag == 0 && now - begin < 20000000000ull);
  *p.out = *p.flag != 0;
}

// Writes through a null pointer.
extern "C" __global__ void fault() { *(volatile int *)nullptr = 1; }

#if __CUDA_ARCH__ >= 900
// The rank of the block in its cluster of two.
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(32) cluster_rank(int *out) {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (threadIdx.x == 0) out[blockIdx.x] = (int)rank;
}
#endif
