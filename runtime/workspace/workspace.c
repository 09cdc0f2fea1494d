#include "workspace/workspace.h"

#include "group/local.h"
#include "launch/call.h"
#include "workspace/memory.h"

static void workspace_free(void *object) {
  purr_workspace_t *workspace = object;
  if (workspace->group != NULL) workspace->group->ops->free(workspace->group, workspace->symmetric);
  if (workspace->peers != NULL) purr__memory_release(workspace->plan, workspace->peers, workspace->peers_bytes);
  if (workspace->owns_memory) purr__memory_release(workspace->plan, workspace->memory, workspace->bytes);
  purr__object_release(workspace->group);
  purr__object_release(workspace->plan);
}

static purr_status_t check_desc(const purr_plan_t *plan, const purr_group_t *group, purr_workspace_desc_t *desc,
                                purr_error_t *err) {
  if (group != NULL && group->object.context != plan->object.context)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "the group and the plan belong to different contexts");
  if (purr_group_num_ranks(group) != plan->layer.num_ranks)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "the group has %d ranks, the plan is for %d",
                      purr_group_num_ranks(group), plan->layer.num_ranks);
  if (desc->memory != NULL && desc->bytes < plan->ws_bytes)
    return purr__fail(err, PURR_STATUS_BUFFER_TOO_SMALL,
                      "the workspace memory has %llu bytes, the plan needs %llu (purr_plan_query says so)",
                      (unsigned long long)desc->bytes, (unsigned long long)plan->ws_bytes);
  if ((uintptr_t)desc->memory % PURR__MEMORY_ALIGNMENT != 0)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "the workspace memory is at %p; it must be %d-byte aligned",
                      desc->memory, PURR__MEMORY_ALIGNMENT);
  purr_status_t status = purr__plan_check_memory(plan, desc->memory, "the workspace memory", err);
  if (desc->bytes < plan->ws_bytes) desc->bytes = plan->ws_bytes;
  if (desc->symmetric_bytes < plan->sym_bytes) desc->symmetric_bytes = plan->sym_bytes;
  return status;
}

static purr_status_t allocate_own(purr_workspace_t *workspace, const purr_workspace_desc_t *desc, purr_error_t *err) {
  workspace->bytes = desc->bytes;
  workspace->memory = desc->memory;
  if (workspace->memory != NULL) return PURR_STATUS_OK;
  workspace->owns_memory = true;
  return purr__memory_allocate(workspace->plan, desc->bytes, "the workspace", (void **)&workspace->memory, err);
}

purr_status_t purr_workspace_create(const purr_plan_t *plan, purr_group_t *group, const purr_workspace_desc_t *desc,
                                    purr_workspace_t **out_workspace, purr_error_t *err) {
  if (out_workspace == NULL) return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "out_workspace is NULL");
  *out_workspace = NULL;
  purr_status_t status = purr__check(plan, PURR__PLAN, err);
  if (status == PURR_STATUS_OK && group != NULL) status = purr__check(group, PURR__GROUP, err);
  if (status != PURR_STATUS_OK) return status;
  purr_workspace_desc_t own = PURR_WORKSPACE_DESC_INIT;
  if (desc != NULL) {
    status = purr__read_struct(&own, sizeof own, desc, "purr_workspace_desc_t", err);
    if (status == PURR_STATUS_OK) status = purr__check_reserved(own.reserved, "purr_workspace_desc_t", err);
    if (status != PURR_STATUS_OK) return status;
  }
  status = check_desc(plan, group, &own, err);
  if (status != PURR_STATUS_OK) return status;

  purr_context_t *context = plan->object.context;
  void *object;
  status = purr__object_create(context, PURR__WORKSPACE, sizeof(purr_workspace_t), workspace_free, &object, err);
  if (status != PURR_STATUS_OK) {
    if (group != NULL) group->ops->decline(group, status);
    return status;
  }
  purr_workspace_t *workspace = object;
  atomic_flag_clear(&workspace->busy);
  purr__object_retain(plan);
  workspace->plan = plan;
  if (group != NULL) {
    purr__object_retain(group);
    workspace->group = group;
  } else {
    const purr_group_desc_t alone = {sizeof alone, 1, 0};
    status = purr__group_create_local(context, &alone, &workspace->group, err);
  }
  if (status == PURR_STATUS_OK) status = allocate_own(workspace, &own, err);
  if (status != PURR_STATUS_OK && group != NULL) group->ops->decline(group, status);
  if (status == PURR_STATUS_OK) {
    workspace->symmetric_bytes = own.symmetric_bytes;
    status = workspace->group->ops->allocate(workspace->group, plan->device, own.symmetric_bytes, plan->hash,
                                             &workspace->symmetric, err);
    /* No peer may take what recycled memory holds for this rank's word. */
    if (status == PURR_STATUS_OK && plan->device == NULL)
      memset(purr__symmetric_at(workspace, plan, workspace->group->rank, PURR__SYM_HEADER), 0,
             plan->sym[PURR__SYM_HEADER].bytes);
  }
  const purr__backend_t *backend = purr__backend_of(plan);
  if (status == PURR_STATUS_OK && backend->prepare_workspace != NULL)
    status = backend->prepare_workspace(workspace, err);
  if (status != PURR_STATUS_OK) {
    purr__object_release(workspace);
    return status;
  }
  *out_workspace = workspace;
  return PURR_STATUS_OK;
}

void purr_workspace_destroy(purr_workspace_t *workspace) { purr__object_release(workspace); }

purr_status_t purr__workspace_acquire(purr_workspace_t *workspace, const purr_plan_t *plan, purr_error_t *err) {
  purr_status_t status = purr__check(workspace, PURR__WORKSPACE, err);
  if (status != PURR_STATUS_OK) return status;
  status = purr__plan_check_place(plan, workspace->plan, "the workspace", err);
  if (status != PURR_STATUS_OK) return status;
  if (workspace->group->num_ranks != plan->layer.num_ranks)
    return purr__fail(err, PURR_STATUS_INVALID_ARGUMENT, "the workspace belongs to %d ranks, the plan is for %d",
                      workspace->group->num_ranks, plan->layer.num_ranks);
  if (workspace->bytes < plan->ws_bytes || workspace->symmetric_bytes < plan->sym_bytes)
    return purr__fail(err, PURR_STATUS_BUFFER_TOO_SMALL,
                      "the workspace was made for a smaller plan: it has %llu bytes and %llu symmetric ones, the plan "
                      "needs %llu and %llu",
                      (unsigned long long)workspace->bytes, (unsigned long long)workspace->symmetric_bytes,
                      (unsigned long long)plan->ws_bytes, (unsigned long long)plan->sym_bytes);
  if (atomic_flag_test_and_set_explicit(&workspace->busy, memory_order_acquire))
    return purr__fail(err, PURR_STATUS_BUSY,
                      "the workspace is used by another call now; use one workspace for each call in flight");
  return PURR_STATUS_OK;
}

void purr__workspace_release(purr_workspace_t *workspace) {
  atomic_flag_clear_explicit(&workspace->busy, memory_order_release);
}
