/* SPDX-License-Identifier: Apache-2.0
 *
 * What the local group's transport can do: rows between two ranks on one GPU (each with a stream) or on two.
 *
 *   bench_transport [--devices A,B] [--repeat N] [--json]
 *
 * Rows of H BF16, as dispatch and combine move them: pulled from random rows of the peer to consecutive ones here, or
 * pushed from consecutive rows to random ones of the peer. By bulk copies through shared memory, or by 16-byte loads
 * and stores of every thread. One block an SM. `one` way: one rank moves all. `both`: each moves as much at once.
 * `7:1`: both at once, but one of them has seven eighths of the rows; the rate is that of all rows over the time of the
 * later rank. The copy engine moves the same bytes in one piece. Each case is checked once, row by row, before it is
 * timed.
 *
 * The flag is a word in the waiting rank's memory, stored with release and loaded with acquire at system scope, by one
 * kernel of each rank that run at the same time.
 *
 * Without --devices: 0 and 1 where they reach each other, else 0 for both ranks. Exits with 77 where there is no GPU.
 */
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "bulk.cuh"

namespace {

constexpr int kThreads = 512, kIssuers = 4, kMaxStages = 16;
constexpr int64_t kBytesOfCase = 192ll << 20; /* several times the L2 */
constexpr int kOnePerSm = 120 << 10;          /* more than half of an SM's shared memory */

#define CHECK(call)                                                                   \
  do {                                                                                \
    cudaError_t error = (call);                                                       \
    if (error != cudaSuccess) {                                                       \
      fprintf(stderr, "bench_transport: %s: %s\n", #call, cudaGetErrorString(error)); \
      exit(2);                                                                        \
    }                                                                                 \
  } while (0)

/* ---- kernels ---- */

/* Row i goes from from[from_row[i]] to to[to_row[i]]; without a list from row i, or to row i. */
struct Rows {
  const char *from;
  char *to;
  const int32_t *from_row, *to_row;
  int32_t num_rows, row_bytes;
};

__device__ __forceinline__ const char *source(const Rows &rows, int i) {
  return rows.from + (int64_t)(rows.from_row != nullptr ? rows.from_row[i] : i) * rows.row_bytes;
}
__device__ __forceinline__ char *destination(const Rows &rows, int i) {
  return rows.to + (int64_t)(rows.to_row != nullptr ? rows.to_row[i] : i) * rows.row_bytes;
}

/* A warp a row; kAhead loads of each lane before the first store. */
__global__ void __launch_bounds__(kThreads) move_plain(const Rows rows) {
  constexpr int kAhead = 8;
  const int warps = kThreads / 32, lane = threadIdx.x % 32;
  for (int i = blockIdx.x * warps + threadIdx.x / 32; i < rows.num_rows; i += gridDim.x * warps) {
    const char *from = source(rows, i);
    char *to = destination(rows, i);
    for (int at = lane * 16; at < rows.row_bytes; at += kAhead * 512) {
      uint4 piece[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; j++)
        if (at + j * 512 < rows.row_bytes) piece[j] = ptx::ld_16_streaming(from + at + j * 512);
#pragma unroll
      for (int j = 0; j < kAhead; j++)
        if (at + j * 512 < rows.row_bytes) ptx::st_16(to + at + j * 512, piece[j]);
    }
  }
}

/* One thread of each warp issues; it has `stages` rows of shared memory. A stage is loaded again when the store before
 * the last has been read out of it. */
__global__ void __launch_bounds__(kIssuers * 32) move_bulk(const Rows rows, int stages) {
  extern __shared__ __align__(128) char shared[];
  __shared__ uint64_t full[kIssuers][kMaxStages];
  const int warp = threadIdx.x / 32;
  if (threadIdx.x % 32 != 0) return;
  char *memory = shared + (int64_t)warp * stages * rows.row_bytes;
  for (int s = 0; s < stages; s++) ptx::mbarrier_init(&full[warp][s], 1);
  ptx::fence_mbarrier_init();
  const int first = blockIdx.x * kIssuers + warp, step = gridDim.x * kIssuers;
  const int num = first < rows.num_rows ? (rows.num_rows - first + step - 1) / step : 0;
  auto load = [&](int n) {
    const int stage = n % stages;
    ptx::mbarrier_arrive_expect_tx(&full[warp][stage], rows.row_bytes);
    ptx::bulk_load(memory + stage * rows.row_bytes, source(rows, first + n * step), rows.row_bytes, &full[warp][stage]);
  };
  for (int n = 0; n < min(num, stages); n++) load(n);
  for (int n = 0; n < num; n++) {
    const int stage = n % stages;
    ptx::mbarrier_wait_acquire(&full[warp][stage], n / stages & 1);
    ptx::bulk_store(destination(rows, first + n * step), memory + stage * rows.row_bytes, rows.row_bytes);
    ptx::bulk_commit();
    if (n < 1 || n - 1 + stages >= num) continue;
    ptx::bulk_wait_read<1>();
    load(n - 1 + stages);
  }
  ptx::bulk_wait<0>();
}

__device__ __forceinline__ uint32_t word_of(uint32_t seed, int64_t row, int word) {
  return (uint32_t)(row * 2654435761u) ^ (uint32_t)(word * 40503u) ^ seed;
}

__global__ void fill(char *rows, int64_t num_rows, int row_bytes, uint32_t seed) {
  for (int64_t row = blockIdx.x; row < num_rows; row += gridDim.x)
    for (int w = threadIdx.x; w < row_bytes / 4; w += blockDim.x)
      reinterpret_cast<uint32_t *>(rows + row * row_bytes)[w] = word_of(seed, row, w);
}

/* Counts the words that are not what they were at their source. */
__global__ void compare(const Rows rows, uint32_t seed, unsigned long long *num_wrong) {
  unsigned long long wrong = 0;
  for (int i = blockIdx.x; i < rows.num_rows; i += gridDim.x) {
    const int64_t from = rows.from_row != nullptr ? rows.from_row[i] : i;
    const uint32_t *to = reinterpret_cast<const uint32_t *>(destination(rows, i));
    for (int w = threadIdx.x; w < rows.row_bytes / 4; w += blockDim.x) wrong += to[w] != word_of(seed, from, w);
  }
  if (wrong != 0) atomicAdd(num_wrong, wrong);
}

/* Holds a stream back until the host opens the gate. */
__global__ void wait_for_gate(const volatile uint32_t *gate, uint32_t value) {
  const uint64_t begin = ptx::global_timer_ns();
  while (*gate < value && ptx::global_timer_ns() - begin < 5000000000ull) {
  }
}

/* One side of the round trips: `own` is here, `peer` is there. `leads`: stores first. Looks at the clock after so many
 * looks at the flag, 1 as purr_barrier does, and gives up after 2 s. */
__global__ void exchange_flags(uint64_t *own, uint64_t *peer, int num_trips, bool leads, int looks, uint64_t *out_ns) {
  const uint64_t begin = ptx::global_timer_ns();
  uint64_t start = begin;
  for (int trip = 1; trip <= num_trips; trip++) {
    if (trip == num_trips / 10 + 1) start = ptx::global_timer_ns(); /* both are surely there by now */
    if (leads) ptx::st_release_sys(peer, trip);
    for (int n = 1; ptx::ld_acquire_sys(own) < (uint64_t)trip; n++)
      if (n % looks == 0 && ptx::global_timer_ns() - begin > 2000000000ull) {
        *out_ns = 0;
        return;
      }
    if (!leads) ptx::st_release_sys(peer, trip);
  }
  *out_ns = ptx::global_timer_ns() - start;
}

/* ---- ranks ---- */

struct Rank {
  int device;
  cudaStream_t stream;
  cudaEvent_t begin, end;
  char *from, *to;                /* kBytesOfCase each */
  int32_t *from_order, *to_order; /* permutations of the rows, for the case of the moment */
  uint64_t *flag, *trip_ns;
  unsigned long long *num_wrong;
};

struct Bench {
  Rank rank[2];
  int num_repeats = 9;
  bool json = false;
  int num_sms = 0;
  volatile uint32_t *gate = nullptr;
  uint32_t opened = 0;
};

void open_rank(Rank &rank, int device) {
  rank.device = device;
  CHECK(cudaSetDevice(device));
  CHECK(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking));
  CHECK(cudaEventCreate(&rank.begin));
  CHECK(cudaEventCreate(&rank.end));
  CHECK(cudaMalloc(&rank.from, kBytesOfCase));
  CHECK(cudaMalloc(&rank.to, kBytesOfCase));
  CHECK(cudaMalloc(&rank.from_order, kBytesOfCase / 4096 * sizeof(int32_t)));
  CHECK(cudaMalloc(&rank.to_order, kBytesOfCase / 4096 * sizeof(int32_t)));
  CHECK(cudaMalloc(&rank.flag, 256));
  CHECK(cudaMalloc(&rank.trip_ns, 256));
  CHECK(cudaMalloc(&rank.num_wrong, 256));
  CHECK(cudaFuncSetAttribute(move_bulk, cudaFuncAttributeMaxDynamicSharedMemorySize, 220 << 10));
  CHECK(cudaFuncSetAttribute(move_plain, cudaFuncAttributeMaxDynamicSharedMemorySize, kOnePerSm));
}

void shuffle(std::vector<int32_t> &order, uint64_t seed) {
  for (size_t i = 0; i < order.size(); i++) order[i] = (int32_t)i;
  for (size_t i = order.size(); i > 1; i--) {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    std::swap(order[i - 1], order[(seed >> 33) % i]);
  }
}

/* ---- cases ---- */

enum Copy { kPlain, kBulk, kEngine };
enum Way { kOne, kBoth, kUneven };
const char *const copy_names[] = {"plain", "bulk", "engine"}, *const way_names[] = {"one", "both", "7:1"};

struct Case {
  int hidden;
  bool pull;
  Copy copy;
  Way way;
  int num_sms; /* of each rank; 0 with the copy engine */
};

/* What rank r moves in the case, and on which device: a pull is the receiver's work, a push the sender's. Rank 0 is the
 * one that works alone, or has the most. */
Rows rows_of(const Bench &bench, const Case &c, int r) {
  const int row_bytes = c.hidden * 2;
  const int64_t all = kBytesOfCase / row_bytes;
  int64_t num = r == 0 ? all : 0;
  if (c.way == kBoth) num = all / 2;
  if (c.way == kUneven) num = r == 0 ? all * 7 / 8 : all / 8;
  const Rank &own = bench.rank[r], &peer = bench.rank[1 - r];
  return Rows{c.pull ? peer.from : own.from,
              c.pull ? own.to : peer.to,
              c.pull ? own.from_order : nullptr,
              c.pull ? nullptr : own.to_order,
              (int32_t)num,
              row_bytes};
}

void enqueue(const Bench &bench, const Case &c, int r) {
  const Rows rows = rows_of(bench, c, r);
  const Rank &rank = bench.rank[r];
  if (rows.num_rows == 0) return;
  if (c.copy == kPlain)
    move_plain<<<c.num_sms, kThreads, kOnePerSm, rank.stream>>>(rows);
  else if (c.copy == kBulk) {
    const int stages = std::min(kMaxStages, (200 << 10) / (kIssuers * rows.row_bytes));
    move_bulk<<<c.num_sms, kIssuers * 32, kIssuers * stages * rows.row_bytes, rank.stream>>>(rows, stages);
  } else
    CHECK(cudaMemcpyAsync(rows.to, rows.from, (int64_t)rows.num_rows * rows.row_bytes, cudaMemcpyDefault, rank.stream));
  CHECK(cudaGetLastError());
}

/* Both ranks' work behind one gate; the time of the later one. */
double time_once(Bench &bench, const Case &c) {
  bench.opened++;
  for (int r = 0; r < 2; r++) {
    CHECK(cudaSetDevice(bench.rank[r].device));
    wait_for_gate<<<1, 1, 0, bench.rank[r].stream>>>(bench.gate, bench.opened);
    CHECK(cudaEventRecord(bench.rank[r].begin, bench.rank[r].stream));
    enqueue(bench, c, r);
    CHECK(cudaEventRecord(bench.rank[r].end, bench.rank[r].stream));
  }
  *bench.gate = bench.opened;
  float longest = 0;
  for (int r = 0; r < 2; r++) {
    float milliseconds;
    CHECK(cudaSetDevice(bench.rank[r].device));
    CHECK(cudaStreamSynchronize(bench.rank[r].stream));
    CHECK(cudaEventElapsedTime(&milliseconds, bench.rank[r].begin, bench.rank[r].end));
    longest = std::max(longest, milliseconds);
  }
  return longest * 1e-3;
}

void order_rows(Bench &bench, int hidden) {
  std::vector<int32_t> order(kBytesOfCase / (hidden * 2));
  for (int r = 0; r < 2; r++) {
    Rank &rank = bench.rank[r];
    CHECK(cudaSetDevice(rank.device));
    fill<<<1024, 256, 0, rank.stream>>>(rank.from, (int64_t)order.size(), hidden * 2, 77u + r);
    shuffle(order, 1 + r);
    CHECK(cudaMemcpy(rank.from_order, order.data(), order.size() * 4, cudaMemcpyHostToDevice));
    shuffle(order, 3 + r);
    CHECK(cudaMemcpy(rank.to_order, order.data(), order.size() * 4, cudaMemcpyHostToDevice));
    CHECK(cudaStreamSynchronize(rank.stream));
  }
}

/* The copy engine moves consecutive rows: only their number is as in the other cases. */
void check(Bench &bench, const Case &c) {
  for (int r = 0; r < 2; r++) {
    CHECK(cudaSetDevice(bench.rank[r].device));
    CHECK(cudaMemset(bench.rank[r].to, 0xEE, kBytesOfCase));
    CHECK(cudaDeviceSynchronize());
  }
  time_once(bench, c);
  for (int r = 0; r < 2; r++) {
    Rows rows = rows_of(bench, c, r);
    const int receiver = c.pull ? r : 1 - r, sender = 1 - receiver;
    const Rank &at = bench.rank[receiver];
    unsigned long long num_wrong = 0;
    if (rows.num_rows == 0) continue;
    if (c.copy == kEngine) rows.from_row = rows.to_row = nullptr;
    CHECK(cudaSetDevice(at.device));
    CHECK(cudaMemset(at.num_wrong, 0, 8));
    compare<<<1024, 256>>>(rows, 77u + sender, at.num_wrong);
    CHECK(cudaMemcpy(&num_wrong, at.num_wrong, 8, cudaMemcpyDeviceToHost));
    if (num_wrong == 0) continue;
    fprintf(stderr, "bench_transport: %s %s, H %d, %d SMs, %s: %llu words are wrong\n", c.pull ? "pull" : "push",
            copy_names[c.copy], c.hidden, c.num_sms, way_names[c.way], num_wrong);
    exit(1);
  }
}

double rate_of(Bench &bench, const Case &c) {
  check(bench, c);
  std::vector<double> times;
  for (int i = -1; i < bench.num_repeats; i++) {
    const double seconds = time_once(bench, c);
    if (i >= 0) times.push_back(seconds);
  }
  std::sort(times.begin(), times.end());
  int64_t bytes = 0;
  for (int r = 0; r < 2; r++) {
    const Rows rows = rows_of(bench, c, r);
    bytes += (int64_t)rows.num_rows * rows.row_bytes;
  }
  return 1e-9 * (double)bytes / times[times.size() / 2];
}

double round_trip_us(Bench &bench, int looks) {
  constexpr int kTrips = 10000;
  for (Rank &rank : bench.rank) {
    CHECK(cudaSetDevice(rank.device));
    CHECK(cudaMemset(rank.flag, 0, 256));
    CHECK(cudaDeviceSynchronize());
  }
  for (int r = 0; r < 2; r++) {
    Rank &rank = bench.rank[r];
    CHECK(cudaSetDevice(rank.device));
    exchange_flags<<<1, 1, 0, rank.stream>>>(rank.flag, bench.rank[1 - r].flag, kTrips, r == 0, looks, rank.trip_ns);
    CHECK(cudaGetLastError());
  }
  uint64_t ns = 0;
  for (Rank &rank : bench.rank) CHECK(cudaStreamSynchronize(rank.stream));
  CHECK(cudaMemcpy(&ns, bench.rank[0].trip_ns, 8, cudaMemcpyDefault));
  return ns == 0 ? -1.0 : 1e-3 * (double)ns / (kTrips - kTrips / 10);
}

/* ---- reports ---- */

bool is_first_json = true;

void print_json(const Case &c, double rate) {
  printf(
      "%s\n    {\"hidden\": %d, \"direction\": \"%s\", \"copy\": \"%s\", \"way\": \"%s\", \"sms\": %d, "
      "\"gb_per_s\": %.1f}",
      is_first_json ? "" : ",", c.hidden, c.pull ? "pull" : "push", copy_names[c.copy], way_names[c.way], c.num_sms,
      rate);
  is_first_json = false;
}

void run_hidden(Bench &bench, int hidden) {
  static const int sms[] = {4, 8, 16, 32, 64, 132};
  const bool is_shared = bench.rank[0].device == bench.rank[1].device;
  order_rows(bench, hidden);
  if (!bench.json) {
    printf("\nrows of %d BF16, GB/s\n  %-18s", hidden, "SMs of a rank");
    for (int n : sms) printf("%7d", n);
    printf("\n");
  }
  for (int way = kOne; way <= kUneven; way++)
    for (int pull = 1; pull >= 0; pull--)
      for (int copy = kBulk; copy >= kPlain; copy--) {
        if (!bench.json) printf("  %-5s%-5s%-8s", way_names[way], pull ? "pull" : "push", copy_names[copy]);
        for (int n : sms) {
          const Case c = {hidden, pull != 0, (Copy)copy, (Way)way, n};
          /* On one GPU two kernels of half its SMs each run at once, larger ones one after the other. */
          if (n > bench.num_sms || (is_shared && way != kOne && 2 * n > bench.num_sms)) {
            if (!bench.json) printf("%7s", "-");
            continue;
          }
          const double rate = rate_of(bench, c);
          bench.json ? print_json(c, rate) : (void)printf("%7.0f", rate);
        }
        if (!bench.json) printf("\n");
        fflush(stdout);
      }
  for (int way = kOne; way <= kUneven; way++) {
    const Case c = {hidden, true, kEngine, (Way)way, 0};
    const double rate = rate_of(bench, c);
    bench.json ? print_json(c, rate) : (void)printf("  %-5s%-13s%7.0f\n", way_names[way], "copy engine", rate);
  }
}

bool parse(int argc, char **argv, Bench &bench, int devices[2], bool &chosen) {
  for (int i = 1; i < argc; i++) {
    const std::string word = argv[i];
    if (word == "--json")
      bench.json = true;
    else if (word == "--repeat" && i + 1 < argc)
      bench.num_repeats = std::max(1, atoi(argv[++i]));
    else if (word == "--devices" && i + 1 < argc && sscanf(argv[i + 1], "%d,%d", &devices[0], &devices[1]) == 2)
      chosen = true, i++;
    else
      return false;
  }
  return true;
}

}  // namespace

int main(int argc, char **argv) {
  Bench bench;
  int devices[2] = {0, 0}, num_devices = 0, can = 0;
  bool chosen = false;
  if (!parse(argc, argv, bench, devices, chosen)) {
    fprintf(stderr, "usage: bench_transport [--devices A,B] [--repeat N] [--json]\n");
    return 2;
  }
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); /* the two streams must not share a queue */
  if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices == 0) {
    fprintf(stderr, "skipped: there is no GPU\n");
    return 77;
  }
  if (!chosen && num_devices > 1) {
    CHECK(cudaDeviceCanAccessPeer(&can, 0, 1));
    devices[1] = can;
  }
  for (int r = 0; r < 2; r++)
    if (devices[r] < 0 || devices[r] >= num_devices) {
      fprintf(stderr, "bench_transport: device %d is not there; there are %d, numbered from 0\n", devices[r],
              num_devices);
      return 2;
    }
  for (int r = 0; r < 2 && devices[0] != devices[1]; r++) {
    CHECK(cudaDeviceCanAccessPeer(&can, devices[r], devices[1 - r]));
    if (!can) {
      fprintf(stderr, "bench_transport: device %d cannot reach the memory of device %d\n", devices[r], devices[1 - r]);
      return 2;
    }
    CHECK(cudaSetDevice(devices[r]));
    CHECK(cudaDeviceEnablePeerAccess(devices[1 - r], 0));
  }
  for (int r = 0; r < 2; r++) open_rank(bench.rank[r], devices[r]);
  void *gate;
  CHECK(cudaHostAlloc(&gate, 64, cudaHostAllocPortable | cudaHostAllocMapped));
  bench.gate = (volatile uint32_t *)gate;
  *bench.gate = 0;
  cudaDeviceProp properties;
  CHECK(cudaGetDeviceProperties(&properties, devices[0]));
  bench.num_sms = properties.multiProcessorCount;

  const double trip = round_trip_us(bench, 1), bare_trip = round_trip_us(bench, 4096);
  if (bench.json)
    printf(
        "{\n  \"device\": \"%s\",\n  \"devices\": [%d, %d],\n  \"num_repeats\": %d,\n  \"flag_round_trip_us\": %.3f,\n"
        "  \"flag_round_trip_without_clock_us\": %.3f,\n  \"cases\": [",
        properties.name, devices[0], devices[1], bench.num_repeats, trip, bare_trip);
  else
    printf(
        "%s, ranks on devices %d and %d, medians of %d; a flag there and back: %.2f us, %.2f us without a look at the "
        "clock each time\n",
        properties.name, devices[0], devices[1], bench.num_repeats, trip, bare_trip);
  for (int hidden : {7168, 2048}) run_hidden(bench, hidden);
  if (bench.json) printf("\n  ]\n}\n");
  return 0;
}
