/* The local provider: R ranks in one process, each driven by a thread of its own. Symmetric memory is ordinary memory.
 */
#include <pthread.h>
#include <time.h>

#include "config/config.h"
#include "driver/driver.h"
#include "group/farewell.h"
#include "group/local.h"

/* One collective allocation: a block from each rank. A rank's memory must outlive its own handle as long as peers may
 * read it, so all blocks are freed together, by the last user. Immutable once all ranks have passed the barrier. */
struct purr__symmetric {
  int num_users, num_ranks; /* num_users is guarded by the team's mutex */
  uint64_t epoch;           /* of the barrier that completes it */
  purr__symmetric_t *next;  /* of the team's; guarded by its mutex */
  struct offer {
    char *memory; /* NULL: the rank made none */
    purr__device_t *device;
    bool shares_device; /* with another rank */
    uint64_t bytes, tag;
    /* What the rank has enqueued on a device, calls that were captured left out; guarded by the team's mutex. */
    uint64_t num_calls, num_barriers;
    void *stream;     /* of the last call ... */
    pthread_t thread; /* ... and who made it */
  } offer[];
};

/* Page-locked memory of a team, which every device reaches. */
struct pinned {
  int32_t broken_word; /* a device writes 1 + the rank that did not come */
  purr__farewell_t farewell[];
};

/* What the ranks share. It lives until the last rank has left. Everything below the mutex is guarded by it. */
typedef struct team {
  purr_context_t *context;
  int num_ranks;
  int64_t timeout_ms;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  int num_members; /* handles not yet destroyed */
  bool broken;
  int broken_rank; /* who did not come */
  const char *broken_site;
  bool broken_by_leaving;
  purr__symmetric_t *forming; /* the collective allocation that ranks are joining now */
  purr__symmetric_t *blocks;  /* all that have users */
  struct pinned *pinned;      /* NULL before there is memory on a device */
  purr__device_t *pinned_device;
  struct member {
    uint64_t epoch;          /* barriers this rank has come to */
    uint64_t declined_epoch; /* the last one that it came to after a failure of its own ... */
    purr_status_t declined_status;
    bool left;
  } member[];
} team_t;

typedef struct local_group {
  purr_group_t base;
  team_t *team;
} local_group_t;

/* ---- waiting ---- */

static purr_status_t report_broken(const team_t *team, int own_rank, purr_error_t *err) {
  if (team->broken_rank == own_rank)
    return purr__fail_rank(err, PURR_STATUS_PEER_FAILED, own_rank,
                           "the others gave up waiting for this rank, %d, in '%s' after %lld ms; the group is broken, "
                           "make a new one",
                           own_rank, team->broken_site, (long long)team->timeout_ms);
  if (team->broken_by_leaving)
    return purr__fail_rank(err, PURR_STATUS_PEER_FAILED, team->broken_rank,
                           "rank %d left the group while others waited for it in '%s'; make a new group",
                           team->broken_rank, team->broken_site);
  return purr__fail_rank(err, PURR_STATUS_PEER_FAILED, team->broken_rank,
                         "rank %d did not come to '%s' within %lld ms; the group is broken, make a new one",
                         team->broken_rank, team->broken_site, (long long)team->timeout_ms);
}

/* The lowest rank that has not come to barrier `epoch`, or -1. */
static int missing_rank(const team_t *team, uint64_t epoch) {
  for (int r = 0; r < team->num_ranks; r++)
    if (team->member[r].epoch < epoch) return r;
  return -1;
}

/* A missing rank that can never come, because it has left; -1 if none. */
static int gone_rank(const team_t *team, uint64_t epoch) {
  for (int r = 0; r < team->num_ranks; r++)
    if (team->member[r].epoch < epoch && team->member[r].left) return r;
  return -1;
}

static void break_team(team_t *team, int rank, const char *site, bool by_leaving) {
  team->broken = true;
  team->broken_rank = rank;
  team->broken_site = site;
  team->broken_by_leaving = by_leaving;
  pthread_cond_broadcast(&team->changed);
}

/* Takes over what a device found. */
static void hear_from_devices(team_t *team) {
  if (team->broken || team->pinned == NULL) return;
  const int32_t word = *(const volatile int32_t *)&team->pinned->broken_word;
  if (word == 0) return;
  const bool has_left = team->member[word - 1].left;
  break_team(team, word - 1, "a call on the device", has_left);
  if (!has_left) purr__count(team->context, PURR__COUNT_TIMEOUTS, 1);
}

static purr_status_t local_barrier(purr_group_t *group, void *stream, const char *site, purr_error_t *err) {
  (void)stream;
  team_t *team = ((local_group_t *)group)->team;
  struct timespec deadline;
  clock_gettime(CLOCK_MONOTONIC, &deadline);
  deadline.tv_sec += team->timeout_ms / 1000;
  deadline.tv_nsec += team->timeout_ms % 1000 * 1000000;
  if (deadline.tv_nsec >= 1000000000) {
    deadline.tv_sec++;
    deadline.tv_nsec -= 1000000000;
  }

  pthread_mutex_lock(&team->mutex);
  purr_status_t status = PURR_STATUS_OK;
  const uint64_t epoch = ++team->member[group->rank].epoch;
  group->num_meetings = epoch;
  hear_from_devices(team);
  if (missing_rank(team, epoch) < 0) pthread_cond_broadcast(&team->changed);
  /* A barrier that all have come to succeeds, even if somebody broke the group or left since. */
  while (missing_rank(team, epoch) >= 0 && !team->broken) {
    if (gone_rank(team, epoch) >= 0)
      break_team(team, gone_rank(team, epoch), site, true);
    else if (pthread_cond_timedwait(&team->changed, &team->mutex, &deadline) != 0 && missing_rank(team, epoch) >= 0 &&
             !team->broken) {
      break_team(team, missing_rank(team, epoch), site, false);
      purr__count(team->context, PURR__COUNT_TIMEOUTS, 1);
    }
  }
  if (missing_rank(team, epoch) >= 0) status = report_broken(team, group->rank, err);
  pthread_mutex_unlock(&team->mutex);
  return status;
}

static purr_status_t local_query_status(purr_group_t *group, purr_error_t *err) {
  team_t *team = ((local_group_t *)group)->team;
  pthread_mutex_lock(&team->mutex);
  hear_from_devices(team);
  purr_status_t status = team->broken ? report_broken(team, group->rank, err) : PURR_STATUS_OK;
  pthread_mutex_unlock(&team->mutex);
  return status;
}

static int32_t *local_broken_word(purr_group_t *group) {
  team_t *team = ((local_group_t *)group)->team;
  pthread_mutex_lock(&team->mutex);
  int32_t *word = team->pinned != NULL ? &team->pinned->broken_word : NULL;
  pthread_mutex_unlock(&team->mutex);
  return word;
}

/* ---- symmetric memory ---- */

static const char creation[] = "workspace creation";

static void release_offer(team_t *team, const struct offer *offer) {
  if (offer->device != NULL)
    purr__device_release(offer->device, offer->memory, offer->bytes);
  else
    purr__release(team->context, offer->memory);
}

/* Adds this rank's offer to the allocation that the next barrier completes, or starts it; takes the offer's memory.
 * NULL when there is no memory for that. */
static purr__symmetric_t *join(team_t *team, int rank, const struct offer *offer) {
  pthread_mutex_lock(&team->mutex);
  const uint64_t epoch = team->member[rank].epoch + 1;
  purr__symmetric_t *block = team->forming;
  if (block == NULL || block->epoch != epoch) {
    const uint64_t block_bytes = sizeof *block + (uint64_t)team->num_ranks * sizeof block->offer[0];
    block = purr__allocate_zeroed(team->context, block_bytes);
    if (block != NULL) {
      block->num_ranks = team->num_ranks;
      block->epoch = epoch;
      block->next = team->blocks;
      team->blocks = team->forming = block;
    }
  }
  if (block != NULL) {
    block->num_users++;
    block->offer[rank] = *offer;
  }
  pthread_mutex_unlock(&team->mutex);
  if (block == NULL) release_offer(team, offer);
  return block;
}

static void leave(team_t *team, purr__symmetric_t *block) {
  pthread_mutex_lock(&team->mutex);
  if (team->forming == block) team->forming = NULL;
  const bool last = --block->num_users == 0;
  if (last) {
    purr__symmetric_t **link = &team->blocks;
    while (*link != block) link = &(*link)->next;
    *link = block->next;
  }
  pthread_mutex_unlock(&team->mutex);
  if (!last) return;
  for (int r = 0; r < block->num_ranks; r++) release_offer(team, &block->offer[r]);
  for (int r = 0; r < block->num_ranks; r++)
    if (block->offer[r].shares_device) purr__device_unshare(block->offer[r].device);
  purr__release(team->context, block);
}

/* A barrier at which every rank says whether it could do its part. OK when all could. */
static purr_status_t vote(purr_group_t *group, purr_status_t own_status, purr_error_t *err) {
  team_t *team = ((local_group_t *)group)->team;
  struct member *own = &team->member[group->rank];
  pthread_mutex_lock(&team->mutex);
  const uint64_t epoch = own->epoch + 1;
  if (own_status != PURR_STATUS_OK) {
    own->declined_epoch = epoch;
    own->declined_status = own_status;
  }
  pthread_mutex_unlock(&team->mutex);
  purr_status_t status = local_barrier(group, NULL, creation, own_status == PURR_STATUS_OK ? err : NULL);
  if (own_status != PURR_STATUS_OK) return own_status;
  pthread_mutex_lock(&team->mutex);
  for (int r = 0; r < team->num_ranks && status == PURR_STATUS_OK; r++)
    if (team->member[r].declined_epoch == epoch)
      status = purr__fail_rank(err, team->member[r].declined_status, r, "rank %d could not make its workspace: %s", r,
                               purr_status_text(team->member[r].declined_status));
  pthread_mutex_unlock(&team->mutex);
  return status;
}

/* Whether what the ranks offered fits together. Every rank finds the same answer. */
static purr_status_t agree(const purr__symmetric_t *block, purr_error_t *err) {
  const struct offer *first = &block->offer[0];
  for (int r = 0; r < block->num_ranks; r++)
    if (block->offer[r].memory == NULL)
      return purr__fail_rank(err, PURR_STATUS_PEER_MISMATCH, r,
                             "rank %d made another call while this one created a workspace; all ranks make the same "
                             "calls in the same order",
                             r);
  for (int r = 1; r < block->num_ranks; r++) {
    const struct offer *offer = &block->offer[r];
    if (offer->tag != first->tag || offer->bytes != first->bytes)
      return purr__fail_rank(err, PURR_STATUS_PEER_MISMATCH, r,
                             "rank %d brought another layer or size than rank 0 (hash %016llx with %llu bytes, rank 0 "
                             "%016llx with %llu); all ranks need the same config",
                             r, (unsigned long long)offer->tag, (unsigned long long)offer->bytes,
                             (unsigned long long)first->tag, (unsigned long long)first->bytes);
  }
  return PURR_STATUS_OK;
}

/* The first rank that comes with a device makes it. */
static purr_status_t make_pinned(team_t *team, purr__device_t *device, purr_error_t *err) {
  purr_status_t status = PURR_STATUS_OK;
  void *pinned = NULL;
  const uint64_t bytes = sizeof *team->pinned + (uint64_t)team->num_ranks * sizeof(purr__farewell_t);
  pthread_mutex_lock(&team->mutex);
  if (team->pinned == NULL && team->num_ranks > 1) {
    status = purr__device_allocate_pinned(device, bytes, &pinned, err);
    if (status == PURR_STATUS_OK) {
      memset(pinned, 0, bytes);
      team->pinned = pinned;
      team->pinned_device = device;
    }
  }
  pthread_mutex_unlock(&team->mutex);
  return status;
}

static purr_status_t allocate_part(team_t *team, struct offer *offer, purr_error_t *err) {
  static const char what[] = "the workspace's symmetric memory";
  void *memory = NULL;
  if (offer->device != NULL) {
    purr_status_t status = make_pinned(team, offer->device, err);
    if (status == PURR_STATUS_OK) status = purr__device_allocate(offer->device, offer->bytes, what, &memory, err);
    /* Barrier words count from zero, and peers look at them as soon as all have come. */
    if (status == PURR_STATUS_OK) status = purr__device_fill(offer->device, memory, 0, offer->bytes, NULL, err);
    if (status == PURR_STATUS_OK) status = purr__device_synchronize(offer->device, NULL, err);
    if (status != PURR_STATUS_OK) {
      purr__device_release(offer->device, memory, offer->bytes);
      return status;
    }
  } else {
    memory = purr__allocate(team->context, offer->bytes);
    if (memory == NULL) return purr__fail_memory(err, what, offer->bytes);
  }
  offer->memory = memory;
  return PURR_STATUS_OK;
}

static int local_num_on_device(const purr__symmetric_t *block, int rank) {
  int num = 0;
  for (int r = 0; r < block->num_ranks; r++) num += block->offer[r].device == block->offer[rank].device;
  return num;
}

/* Lets this rank's kernels reach every part. */
static purr_status_t reach_peers(purr__symmetric_t *block, int rank, purr_error_t *err) {
  struct offer *own = &block->offer[rank];
  purr__device_t *device = own->device;
  own->shares_device = local_num_on_device(block, rank) > 1;
  if (own->shares_device) purr__device_share(device);
  purr_status_t status = PURR_STATUS_OK;
  for (int r = 0; r < block->num_ranks && status == PURR_STATUS_OK; r++)
    status = purr__device_enable_peer(device, block->offer[r].device, err);
  return status;
}

static purr_status_t local_allocate(purr_group_t *group, purr__device_t *device, uint64_t bytes, uint64_t tag,
                                    purr__symmetric_t **out_block, purr_error_t *err) {
  *out_block = NULL;
  team_t *team = ((local_group_t *)group)->team;
  struct offer offer = {.device = device, .bytes = bytes, .tag = tag};
  purr__symmetric_t *block = NULL;
  purr_status_t status = allocate_part(team, &offer, err);
  if (status == PURR_STATUS_OK) {
    block = join(team, group->rank, &offer);
    if (block == NULL) status = purr__fail_memory(err, "the table of symmetric memory", sizeof *block);
  }
  status = vote(group, status, err);
  if (status == PURR_STATUS_OK) status = agree(block, err);
  if (status == PURR_STATUS_OK && device != NULL) status = vote(group, reach_peers(block, group->rank, err), err);
  /* Nobody may start another allocation while a rank still looks at this one; and a rank that was in another call, and
   * finds that out, comes to one more barrier too. */
  if (status != PURR_STATUS_OK) local_barrier(group, NULL, creation, NULL);
  if (status == PURR_STATUS_OK)
    *out_block = block;
  else if (block != NULL)
    leave(team, block);
  return status;
}

static void local_decline(purr_group_t *group, purr_status_t status) {
  vote(group, status, NULL);
  local_barrier(group, NULL, creation, NULL);
}

static void local_free(purr_group_t *group, purr__symmetric_t *block) {
  if (block != NULL) leave(((local_group_t *)group)->team, block);
}

static char *local_address(const purr__symmetric_t *block, int rank) { return block->offer[rank].memory; }

/* ---- calls on devices ---- */

static bool is_captured(const purr__device_t *device, void *stream) {
  int capture = CU_STREAM_CAPTURE_STATUS_NONE;
  return device->driver->cuda.cuStreamIsCapturing(stream, &capture) == CUDA_SUCCESS &&
         capture != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* Whether a call of this thread on `stream` would wait behind the last one of a rank: that of a thread's own default
 * stream is another one in each thread. */
static bool is_stream_of(const struct offer *offer, void *stream) {
  return offer->stream == stream &&
         ((uintptr_t)stream != CU_STREAM_PER_THREAD || pthread_equal(offer->thread, pthread_self()));
}

/* Ranks make the same calls, so their numbers are equal. A rank whose call of this number, or a later one, is on the
 * stream is still waiting there; an earlier one's stream may be gone, and its handle be that of a new one. */
static purr_status_t local_start_call(purr_group_t *group, purr__symmetric_t *block, void *stream, int num_barriers,
                                      purr_error_t *err) {
  team_t *team = ((local_group_t *)group)->team;
  struct offer *own = &block->offer[group->rank];
  if (is_captured(own->device, stream)) return PURR_STATUS_OK;
  purr_status_t status = PURR_STATUS_OK;
  pthread_mutex_lock(&team->mutex);
  for (int r = 0; r < block->num_ranks && status == PURR_STATUS_OK; r++) {
    const struct offer *other = &block->offer[r];
    if (other != own && other->device == own->device && other->num_calls > own->num_calls &&
        is_stream_of(other, stream))
      status = purr__fail_rank(err, PURR_STATUS_INVALID_ARGUMENT, r,
                               "rank %d was given the stream in which rank %d, on the same device, waits for it; each "
                               "rank needs a stream of its own (purr_stream_create)",
                               group->rank, r);
  }
  if (status == PURR_STATUS_OK) {
    own->num_calls++;
    own->num_barriers += (uint64_t)num_barriers;
    own->stream = stream;
    own->thread = pthread_self();
  }
  pthread_mutex_unlock(&team->mutex);
  return status;
}

/* ---- lifetime ---- */

/* One user more, so that it stays, and stays in the list. The mutex is held. */
static purr__symmetric_t *use(purr__symmetric_t *block) {
  if (block != NULL) block->num_users++;
  return block;
}

/* Whether all ranks have their parts, and have them on devices. */
static bool is_on_devices(const purr__symmetric_t *block) {
  for (int r = 0; r < block->num_ranks; r++)
    if (block->offer[r].memory == NULL || block->offer[r].device == NULL) return false;
  return true;
}

/* The caller gives the rank up: nobody will drive it again, even if a workspace still holds the object. */
static void local_leave(purr_group_t *group) {
  team_t *team = ((local_group_t *)group)->team;
  pthread_mutex_lock(&team->mutex);
  team->member[group->rank].left = true;
  pthread_cond_broadcast(&team->changed);
  purr__symmetric_t *block = team->num_ranks > 1 ? use(team->blocks) : NULL;
  while (block != NULL) {
    const struct offer *own = &block->offer[group->rank];
    const uint64_t num_barriers = own->num_barriers;
    const bool is_told = is_on_devices(block);
    pthread_mutex_unlock(&team->mutex);
    if (is_told) purr__farewell(group, block, own->device, num_barriers, &team->pinned->farewell[group->rank]);
    pthread_mutex_lock(&team->mutex);
    purr__symmetric_t *next = use(block->next);
    pthread_mutex_unlock(&team->mutex);
    leave(team, block);
    pthread_mutex_lock(&team->mutex);
    block = next;
  }
  pthread_mutex_unlock(&team->mutex);
}

static const purr__group_ops_t local_ops = {
    .name = "local",
    .allocate = local_allocate,
    .decline = local_decline,
    .free = local_free,
    .address = local_address,
    .barrier = local_barrier,
    .query_status = local_query_status,
    .broken_word = local_broken_word,
    .leave = local_leave,
    .num_on_device = local_num_on_device,
    .start_call = local_start_call,
};

static void team_free(team_t *team) {
  if (team->pinned != NULL) purr__device_release_pinned(team->pinned_device, team->pinned);
  pthread_cond_destroy(&team->changed);
  pthread_mutex_destroy(&team->mutex);
  purr__release(team->context, team);
}

static void group_free(void *object) {
  team_t *team = ((local_group_t *)object)->team;
  pthread_mutex_lock(&team->mutex);
  const bool last = --team->num_members == 0;
  pthread_mutex_unlock(&team->mutex);
  if (last) team_free(team);
}

static purr_status_t team_create(purr_context_t *context, const purr_group_desc_t *desc, team_t **out_team,
                                 purr_error_t *err) {
  const uint64_t bytes = sizeof(team_t) + (uint64_t)desc->num_ranks * sizeof(struct member);
  team_t *team = purr__allocate_zeroed(context, bytes);
  if (team == NULL) return purr__fail_memory(err, "the group", bytes);
  team->context = context;
  team->num_ranks = desc->num_ranks;
  team->timeout_ms = desc->timeout_ms ? desc->timeout_ms : PURR__DEFAULT_TIMEOUT_MS;
  pthread_mutex_init(&team->mutex, NULL);
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&team->changed, &attributes);
  pthread_condattr_destroy(&attributes);
  *out_team = team;
  return PURR_STATUS_OK;
}

purr_status_t purr__group_create_local(purr_context_t *context, const purr_group_desc_t *desc,
                                       purr_group_t **out_groups, purr_error_t *err) {
  team_t *team = NULL;
  purr_status_t status = team_create(context, desc, &team, err);
  if (status != PURR_STATUS_OK) return status;
  for (int r = 0; r < desc->num_ranks; r++) {
    void *object;
    status = purr__object_create(context, PURR__GROUP, sizeof(local_group_t), group_free, &object, err);
    if (status != PURR_STATUS_OK) {
      if (r == 0) team_free(team);
      while (r-- > 0) {
        purr__object_release(out_groups[r]);
        out_groups[r] = NULL;
      }
      return status;
    }
    local_group_t *group = object;
    group->base.ops = &local_ops;
    group->base.rank = r;
    group->base.num_ranks = desc->num_ranks;
    group->base.timeout_ms = team->timeout_ms;
    group->team = team;
    team->num_members++;
    out_groups[r] = &group->base;
  }
  return PURR_STATUS_OK;
}
