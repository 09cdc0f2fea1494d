// Spills on purpose: 32 registers a thread are not enough for 40 live values.
struct spill_params {
  float *values;
  int count;
};
extern "C" __global__ void __launch_bounds__(1024, 2) spill(const __grid_constant__ spill_params p) {
  float v[40];
  for (int i = 0; i < 40; i++) v[i] = p.values[i * p.count + threadIdx.x];
#pragma unroll 1
  for (int k = 0; k < p.count; k++)
#pragma unroll
    for (int i = 0; i < 40; i++) v[i] = v[i] * v[(i + 7) % 40] + p.values[k];
  for (int i = 0; i < 40; i++) p.values[i * p.count + threadIdx.x] = v[i];
}
