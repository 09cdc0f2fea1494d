/* The public face of groups, whatever the provider. */
#include "group/group.h"

#include "group/local.h"

#define MAX_RANKS 4096

purr_status_t purr_group_create_local(purr_context_t *context, const purr_group_desc_t *desc, purr_group_t **out_groups,
                                      purr_error_t *err) {
  if (out_groups == NULL) return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "out_groups is NULL");
  purr_group_desc_t own;
  purr_status_t status = purr__read_struct(&own, sizeof own, desc, "purr_group_desc_t", err);
  if (status != PURR_STATUS_OK) return status;
  if (own.num_ranks < 1 || own.num_ranks > MAX_RANKS)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "num_ranks is %d; allowed are 1 to %d", own.num_ranks,
                      MAX_RANKS);
  for (int r = 0; r < own.num_ranks; r++) out_groups[r] = NULL;
  status = purr__check(context, PURR__CONTEXT, err);
  if (status != PURR_STATUS_OK) return status;
  if (own.timeout_ms < 0)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "timeout_ms is %lld; it is not negative",
                      (long long)own.timeout_ms);
  return purr__group_create_local(context, &own, out_groups, err);
}

purr_status_t purr_group_query_status(purr_group_t *group, purr_error_t *err) {
  purr_status_t status = purr__check(group, PURR__GROUP, err);
  return status != PURR_STATUS_OK ? status : group->ops->query_status(group, err);
}

int32_t purr_group_rank(const purr_group_t *group) { return group != NULL ? group->rank : 0; }

int32_t purr_group_num_ranks(const purr_group_t *group) { return group != NULL ? group->num_ranks : 1; }

void purr_group_destroy(purr_group_t *group) {
  if (purr__check(group, PURR__GROUP, NULL) != PURR_STATUS_OK) return; /* NULL, or inherited through fork */
  group->ops->leave(group);
  purr__object_release(group);
}
