/* What both kinds of device channels are made of: channel_op (xen-abi/src/channel_op.rs), this domain's grants, event ports. */
#ifndef CHANNEL_H
#define CHANNEL_H
#include "domains.h"

enum { HC_channel_op = 56, SWITCH_CREATE = 0, SWITCH_DESTROY, VIF_CONNECT, VIF_DISCONNECT, VIF_STATUS, VIF_NEXT, WAY_OUT,
	DISK_CONNECT = 8, DISK_DISCONNECT, DISK_ATTACH, DISK_DETACH, DISK_STATUS, DISK_NEXT, DISK_CLOSE_PORT, SWITCH_HOLD = 16,
	SWITCH_DRAIN = 21 };

struct grant_entry {
	volatile u16 flags, domid;
	volatile u32 frame;
};
enum { PERMIT = 1, GRANT_READ_ONLY = 4, READING = 8, WRITING = 16 };

s64 channel_op(u32 cmd, void *argument);
/* The first page of this domain's grant table. */
struct grant_entry *own_grants(void);
/* Fills an entry; it is good when all of it is there. */
void grant(struct grant_entry *entry, u16 to, u64 frame, u16 flags);
/* How many of `nr` grants somebody uses. */
u32 grants_in_use(const struct grant_entry *grants, u32 nr);
s64 kick(u32 port);
bool is_pending(u32 port);
void clear_pending(u32 port);
#endif
