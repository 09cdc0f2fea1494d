/* Ranks in one process. */
#ifndef PURR_GROUP_LOCAL_H
#define PURR_GROUP_LOCAL_H

#include "group/group.h"

/* `desc` is checked. out_groups[0..R-1] are all set, or all NULL. */
purr_status_t purr__group_create_local(purr_context_t *context, const purr_group_desc_t *desc,
                                       purr_group_t **out_groups, purr_error_t *err);

#endif
