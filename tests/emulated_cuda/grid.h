/* A launched kernel on the emulated machine. */
#ifndef PURR_EMULATED_GRID_H
#define PURR_EMULATED_GRID_H

#include <array>

#include "fake_cuda/engine.h"
#include "machine.h"

namespace machine {

/* A kernel: calls the entry with its parameters, which lie where `params` point. */
struct Kernel {
  const char *name;
  std::shared_ptr<void> (*copy_params)(void **params);
  void (*call)(const void *params);
  unsigned cluster; /* blocks, as the source says */
};
const Kernel *find_kernel(const char *name, int cc); /* compute capability, major * 10 + minor */

struct Grid {
  const Kernel *kernel;
  std::shared_ptr<void> params;
  int device;
  Dim grid, block;
  unsigned cluster = 1;
  size_t shared_bytes = 0;

  unsigned next_block = 0;                        /* that has not begun */
  std::vector<std::unique_ptr<Cluster>> clusters; /* that run */
  std::string failure;

  bool is_done() const { return next_block == grid.count() && clusters.empty(); }
};

/* The processors of all devices. */
class Machine {
 public:
  Machine(int num_sms, uint32_t seed);
  int num_sms() const { return num_sms_; }
  static int blocks_per_sm(unsigned threads, size_t shared_bytes);
  void add(std::shared_ptr<Grid> grid);
  /* Lets all threads that can go on do so, for a while. */
  void run();
  bool is_busy() const { return !grids_.empty(); }

 private:
  struct Processor {
    unsigned threads = 0;
    size_t shared_bytes = 0;
    bool has_room(unsigned more_threads, size_t more_bytes) const;
  };

  void start_blocks(Grid &grid);
  void run_cluster(Grid &grid, Cluster &cluster);
  void end_cluster(Grid &grid, size_t i);
  bool is_stuck(const Grid &grid) const;
  static std::string whereabouts(const Grid &grid);

  int num_sms_;
  std::vector<std::vector<Processor>> processors_; /* [device][sm] */
  std::vector<std::shared_ptr<Grid>> grids_;       /* in the order of their launches */
};

}  // namespace machine

#endif
