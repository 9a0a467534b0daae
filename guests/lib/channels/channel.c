#include "channel.h"

static u8 own_table[PAGE] SHARED __attribute__((aligned(4096)));

s64 channel_op(u32 cmd, void *argument)
{
	return hypercall(HC_channel_op, cmd, (u64)argument, 0, 0, 0);
}

struct grant_entry *own_grants(void)
{
	static bool is_mapped;
	u64 frame_of_table = 0;
	struct {
		u16 domid, pad;
		u32 nr;
		int16_t status;
		void *list;
	} setup = { DOMID_SELF, 0, 1, 99, &frame_of_table };
	if (!is_mapped) {
		if (HC3(grant_table_op, 2, &setup, 1) || setup.status || update_va(own_table, pte(frame_of_table, P | RW | US), 2))
			error("the grant table");
		is_mapped = true;
	}
	return (struct grant_entry *)own_table;
}

void grant(struct grant_entry *entry, u16 to, u64 frame, u16 flags)
{
	entry->frame = frame;
	entry->domid = to;
	__atomic_store_n(&entry->flags, PERMIT | flags, __ATOMIC_RELEASE);
}

u32 grants_in_use(const struct grant_entry *grants, u32 nr)
{
	u32 in_use = 0;
	for (u32 n = 0; n < nr; n++)
		in_use += (grants[n].flags & (READING | WRITING)) != 0;
	return in_use;
}

s64 kick(u32 port)
{
	return evtchn(EVTCHN_send, &port);
}

bool is_pending(u32 port)
{
	return shared_info()->pending[port / 64] >> port % 64 & 1;
}

void clear_pending(u32 port)
{
	__atomic_fetch_and((u64 *)&shared_info()->pending[port / 64], ~(1ul << port % 64), __ATOMIC_SEQ_CST);
}
